/* A scheduler for threads that say where they want to run: each goes to the CPU in `wanted` when it yields.
 *
 * Threads of other policies are left to the kernel (SCX_OPS_SWITCH_PARTIAL). A yield ends the slice; that the
 * thread is asked about even where no other wants its CPU is SCX_OPS_ENQ_LAST.
 *
 * Source: Documentation/scheduler/sched-ext.rst. */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define SLICE_NS 20000000

void scx_bpf_dsq_insert(struct task_struct *task, u64 queue, u64 slice, u64 flags) __ksym;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} wanted SEC(".maps");

SEC("struct_ops/select_cpu")
s32 BPF_PROG(stay, struct task_struct *task, s32 before, u64 flags)
{
	return before;
}

SEC("struct_ops/enqueue")
void BPF_PROG(go, struct task_struct *task, u64 flags)
{
	u32 first = 0;
	u64 *cpu = bpf_map_lookup_elem(&wanted, &first);

	scx_bpf_dsq_insert(task, SCX_DSQ_LOCAL_ON | (cpu ? *cpu : 0), SLICE_NS, 0);
}

SEC(".struct_ops.link")
struct sched_ext_ops trial = {
	.select_cpu = (void *)stay,
	.enqueue = (void *)go,
	.flags = SCX_OPS_ENQ_LAST | SCX_OPS_SWITCH_PARTIAL,
	.name = "hither_trial",
};
