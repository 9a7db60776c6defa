/*
 * Copies a buffer and moves another to node 0, with every result printed.
 *
 *   cc replicate.c $(pkg-config --cflags --libs hither) -o replicate && ./replicate
 */
#include <hither.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES = 2 << 20, PAGE = 4096 };

static int fail(const char *what) {
  fprintf(stderr, "replicate: %s: %s\n", what, hither_last_error());
  return 1;
}

static void print(int handle, const struct hither_request *req) {
  static const char *const words[] = {"blank", "submitted", "done", "failed", "cancelled"};
  const char *backend = hither_backend_name(handle, req->backend);
  printf("%s %s by %s: %" PRIu64 " pages moved, %" PRIu64 " there already, %" PRIu64 " bytes\n",
         req->kind == HITHER_MIGRATE ? "migration" : "replication", words[req->status],
         backend ? backend : "nobody", req->moved, req->already_there, req->bytes);
  printf("  %" PRIu64 " ns queued, %" PRIu64 " ns moving, %" PRIu64 " ns of writers' time\n",
         req->queue_ns, req->move_ns, req->stall_ns);
  for (uint32_t reason = 0; reason < HITHER_REFUSED_COUNT; reason++) {
    if (req->refused[reason]) {
      printf("  %" PRIu32 " pages stayed: %s\n", req->refused[reason], hither_reason_name(reason));
    }
  }
}

int main(void) {
  struct hither_config config;
  memset(&config, 0, sizeof config); /* zero is the default of every field */
  config.capacity = 16;
  config.copiers = 2;
  int handle = hither_open_config(&config, sizeof config);
  if (handle < 0) {
    return fail("hither_open_config");
  }
  char text[1024];
  hither_describe(handle, text, sizeof text);
  printf("hither %s\n%s", hither_version(), text);

  char *from = (char *)aligned_alloc(PAGE, BYTES), *to = (char *)aligned_alloc(PAGE, BYTES);
  if (!from || !to) {
    return 1;
  }
  memset(from, 7, BYTES);
  memset(to, 8, BYTES);

  struct hither_request *copy = hither_alloc_request(handle);
  struct hither_request *move = hither_alloc_request(handle);
  if (!copy || !move) {
    return fail("hither_alloc_request");
  }
  copy->kind = HITHER_REPLICATE;
  copy->src_base = from;
  copy->dst_base = to;
  copy->length = BYTES;
  move->kind = HITHER_MIGRATE;
  move->src_base = from;
  move->length = BYTES;
  move->node = 0;
  move->flags = HITHER_RACE_BLOCK;
  if (hither_submit_request(copy) != HITHER_OK) {
    return fail("hither_submit_request");
  }
  struct hither_request *done = hither_wait(handle, 10000);
  if (!done) {
    return fail("hither_wait");
  }
  print(handle, done);
  int good = done->status == HITHER_DONE && memcmp(from, to, BYTES) == 0;
  hither_free_request(done);

  if (hither_submit_request(move) != HITHER_OK) {
    return fail("hither_submit_request");
  }
  done = hither_wait(handle, 10000);
  if (!done) {
    return fail("hither_wait");
  }
  print(handle, done);
  good = good && memcmp(from, to, BYTES) == 0; /* a move changes no byte */
  hither_free_request(done);
  hither_close(handle);
  free(from);
  free(to);
  return good ? 0 : 1;
}
