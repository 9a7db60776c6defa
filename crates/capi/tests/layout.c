/* The layouts that programs were compiled against: compiling this is the test. */
#include <hither.h>

#define AT(type, field, offset, bytes)                                    \
  _Static_assert(offsetof(struct type, field) == offset, #type "." #field); \
  _Static_assert(sizeof(((struct type *)0)->field) == bytes, #type "." #field)

_Static_assert(sizeof(struct hither_request) == 192, "hither_request");
AT(hither_request, src_base, 0, 8);
AT(hither_request, dst_base, 8, 8);
AT(hither_request, length, 16, 8);
AT(hither_request, tag, 24, 8);
AT(hither_request, kind, 32, 4);
AT(hither_request, flags, 36, 4);
AT(hither_request, node, 40, 4);
AT(hither_request, reserved, 44, 4);
AT(hither_request, status, 48, 4);
AT(hither_request, backend, 52, 4);
AT(hither_request, moved, 56, 8);
AT(hither_request, already_there, 64, 8);
AT(hither_request, bytes, 72, 8);
AT(hither_request, queue_ns, 80, 8);
AT(hither_request, move_ns, 88, 8);
AT(hither_request, stall_ns, 96, 8);
AT(hither_request, huge_kept, 104, 4);
AT(hither_request, huge_split, 108, 4);
AT(hither_request, race_address, 112, 8);
AT(hither_request, race_thread, 120, 4);
AT(hither_request, refused, 124, 64);
AT(hither_request, reserved_result, 188, 4);

_Static_assert(sizeof(struct hither_residency) == 32, "hither_residency");
AT(hither_residency, pages, 0, 8);
AT(hither_residency, absent, 8, 8);
AT(hither_residency, astray, 16, 8);
AT(hither_residency, huge, 24, 8);

_Static_assert(sizeof(struct hither_replicated_config) == 40, "hither_replicated_config");
AT(hither_replicated_config, budget_bytes, 0, 8);
AT(hither_replicated_config, reserve_bytes, 8, 8);
AT(hither_replicated_config, chunk_bytes, 16, 4);
AT(hither_replicated_config, flags, 20, 4);
AT(hither_replicated_config, readers, 24, 4);
AT(hither_replicated_config, workers, 28, 4);
AT(hither_replicated_config, copies, 32, 4);
AT(hither_replicated_config, keep_ms, 36, 4);

_Static_assert(sizeof(struct hither_view) == 40, "hither_view");
AT(hither_view, data, 0, 8);
AT(hither_view, chunks, 8, 8);
AT(hither_view, bytes, 16, 8);
AT(hither_view, epoch, 24, 8);
AT(hither_view, chunk_shift, 32, 4);
AT(hither_view, is_local, 36, 4);

_Static_assert(sizeof(struct hither_stream_config) == 80, "hither_stream_config");
AT(hither_stream_config, block, 0, 8);
AT(hither_stream_config, cache_bytes, 8, 8);
AT(hither_stream_config, input_bytes, 16, 8);
AT(hither_stream_config, output_bytes, 24, 8);
AT(hither_stream_config, fast_memory, 32, 8);
AT(hither_stream_config, fast_bytes, 40, 8);
AT(hither_stream_config, fast_node, 48, 4);
AT(hither_stream_config, inputs, 52, 4);
AT(hither_stream_config, outputs, 56, 4);
AT(hither_stream_config, buffers, 60, 4);
AT(hither_stream_config, threads, 64, 4);
AT(hither_stream_config, results, 68, 4);
AT(hither_stream_config, adapt, 72, 4);
AT(hither_stream_config, flags, 76, 4);

_Static_assert(sizeof(struct hither_stream_part) == 48, "hither_stream_part");
AT(hither_stream_part, inputs, 0, 8);
AT(hither_stream_part, outputs, 8, 8);
AT(hither_stream_part, block, 16, 8);
AT(hither_stream_part, first, 24, 8);
AT(hither_stream_part, length, 32, 8);
AT(hither_stream_part, thread, 40, 4);
AT(hither_stream_part, is_fast, 44, 4);

_Static_assert(sizeof(struct hither_stream_report) == 88, "hither_stream_report");
AT(hither_stream_report, blocks, 0, 8);
AT(hither_stream_report, fast_blocks, 8, 8);
AT(hither_stream_report, late_fills, 16, 8);
AT(hither_stream_report, failed_fills, 24, 8);
AT(hither_stream_report, failed_returns, 32, 8);
AT(hither_stream_report, copied_bytes, 40, 8);
AT(hither_stream_report, copying_ns, 48, 8);
AT(hither_stream_report, overlapped_ns, 56, 8);
AT(hither_stream_report, elapsed_ns, 64, 8);
AT(hither_stream_report, gain, 72, 8);
AT(hither_stream_report, decision, 80, 4);
AT(hither_stream_report, buffers, 84, 4);

_Static_assert(sizeof(struct hither_area) == 40, "hither_area");
AT(hither_area, start, 0, 8);
AT(hither_area, length, 8, 8);
AT(hither_area, grain, 16, 8);
AT(hither_area, types, 24, 4);
AT(hither_area, directions, 28, 4);
AT(hither_area, node, 32, 4);
AT(hither_area, threshold, 36, 4);

_Static_assert(sizeof(struct hither_reached) == 24, "hither_reached");
AT(hither_reached, area, 0, 4);
AT(hither_reached, sum, 4, 4);
AT(hither_reached, grain, 8, 8);
AT(hither_reached, node, 16, 4);
AT(hither_reached, reserved, 20, 4);

_Static_assert(sizeof(struct hither_totals) == 32, "hither_totals");
AT(hither_totals, short_packets, 0, 8);
AT(hither_totals, line_packets, 8, 8);
AT(hither_totals, transactions, 16, 8);
AT(hither_totals, flops, 24, 8);

_Static_assert(sizeof(struct hither_config) == HITHER_CONFIG_BYTES_0_1 + 8, "hither_config");
AT(hither_config, name, 0, 8);
AT(hither_config, flags, 8, 4);
AT(hither_config, capacity, 12, 4);
AT(hither_config, workers, 16, 4);
AT(hither_config, copiers, 20, 4);
AT(hither_config, spin_us, 24, 4);
AT(hither_config, batch_requests, 28, 4);
AT(hither_config, batch_bytes, 32, 8);
AT(hither_config, small_bytes, 40, 8);
AT(hither_config, rate_limit_bytes_per_s, 48, 8);
AT(hither_config, cpus, 56, 8);
AT(hither_config, cpu_count, 64, 8);
AT(hither_config, first_bytes, 72, 8);

/* Numbers that programs have compiled in. */
#define IS(name, number) _Static_assert(name == number, #name)
IS(HITHER_OK, 0);
IS(HITHER_EPERM, -1);
IS(HITHER_ENOENT, -2);
IS(HITHER_E2BIG, -7);
IS(HITHER_EBADF, -9);
IS(HITHER_EFORK, -10);
IS(HITHER_EAGAIN, -11);
IS(HITHER_ENOMEM, -12);
IS(HITHER_EFAULT, -14);
IS(HITHER_EBUSY, -16);
IS(HITHER_EINVAL, -22);
IS(HITHER_ETIMEDOUT, -110);
IS(HITHER_ECONNREFUSED, -111);
IS(HITHER_REPLICATED_PARTIAL, 1);
IS(HITHER_REPLICATED_INTERLEAVE, 2);
IS(HITHER_REPLICATED_HUGE, 4);
IS(HITHER_STREAM_IN_PLACE, 0);
IS(HITHER_STREAM_FAST, 1);
IS(HITHER_STREAM_FAST_UPDATED, 2);
IS(HITHER_STREAM_MEASURE, 0);
IS(HITHER_STREAM_ALWAYS, 1);
IS(HITHER_STREAM_NEVER, 2);
IS(HITHER_STREAM_WHOLE, 1);
IS(HITHER_STREAM_HUGE, 2);
IS(HITHER_STREAM_UNDECIDED, 0);
IS(HITHER_STREAM_PLAIN, 1);
IS(HITHER_STREAM_THROUGH, 2);
IS(HITHER_MONITOR_SAMPLES, 1);
IS(HITHER_TYPE_READ, 1);
IS(HITHER_TYPE_WRITE, 2);
IS(HITHER_TYPE_PREFETCH, 4);
IS(HITHER_TYPE_PREFETCH_WRITE, 8);
IS(HITHER_TYPE_WRITE_BACK, 16);
IS(HITHER_TYPE_TRANSFER, 32);
IS(HITHER_TYPE_TRANSFER_WRITE, 64);
IS(HITHER_TYPE_OWNERSHIP, 128);
IS(HITHER_TYPE_FILLS, 15);
IS(HITHER_INBOUND, 1);
IS(HITHER_OUTBOUND, 2);
IS(HITHER_LOCAL, 4);
IS(HITHER_REMOTE, 3);
IS(HITHER_AT_NODE, 256);
IS(HITHER_EALREADY, -114);
IS(HITHER_ECORRUPT, -117);
IS(HITHER_EINTERNAL, -131);
IS(HITHER_REPLICATE, 1);
IS(HITHER_MIGRATE, 2);
IS(HITHER_RACE_RECOVER, 0);
IS(HITHER_RACE_FAIL, 1);
IS(HITHER_RACE_BLOCK, 2);
IS(HITHER_PRIORITY_HIGH, 4);
IS(HITHER_BLANK, 0);
IS(HITHER_SUBMITTED, 1);
IS(HITHER_DONE, 2);
IS(HITHER_FAILED, 3);
IS(HITHER_CANCELLED, 4);
IS(HITHER_REFUSED_BUSY, 0);
IS(HITHER_REFUSED_PINNED, 1);
IS(HITHER_REFUSED_NO_MEMORY, 2);
IS(HITHER_REFUSED_UNMAPPED, 3);
IS(HITHER_REFUSED_NOT_OURS, 4);
IS(HITHER_REFUSED_SHARED, 5);
IS(HITHER_REFUSED_PROCESS_GONE, 6);
IS(HITHER_REFUSED_TARGET_FORBIDDEN, 7);
IS(HITHER_REFUSED_DROPPED, 8);
IS(HITHER_REFUSED_NOT_SUPPORTED, 9);
IS(HITHER_REFUSED_COUNT, 16);
IS(HITHER_DRAIN, 0);
IS(HITHER_ABANDON, 1);
IS(HITHER_EXCHANGE_ALWAYS, 1);
IS(HITHER_EXCHANGE_NEVER, 2);
IS(HITHER_NO_SPIN, 4);
