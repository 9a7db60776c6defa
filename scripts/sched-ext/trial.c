/* What a thread pays that goes from CPU 0 to CPU 1 and back: by sched_setaffinity(2) or by the scheduler of
 * trial.bpf.c, alone or in the fault of a page whose protection key is closed.
 *
 * usage: trial SCHEDULER.o affinity|sched_ext alone|keys COUNT
 * Prints ns of a move, the mean and one half below; the thread is checked to be where it should each time. */
#define _GNU_SOURCE
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <cpuid.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#ifndef SCHED_EXT
#define SCHED_EXT 7
#endif
#define PAGE 4096
/* The key register is part 9 of what XSAVE keeps (Intel SDM 1, section 13.1); its header is at byte 512. */
#define PKRU_PART 9
#define XSAVE_HEADER 512

static volatile uint64_t *wanted;
static int by_affinity;
static volatile uint64_t *pages[2];
static int keys[2];
static unsigned pkru_offset;
static unsigned long faults;

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000ull + now.tv_nsec;
}

static void move(int cpu)
{
	if (by_affinity) {
		cpu_set_t set;

		CPU_ZERO(&set);
		CPU_SET(cpu, &set);
		if (sched_setaffinity(0, sizeof(set), &set))
			fail("sched_setaffinity");
	} else {
		*wanted = cpu;
		sched_yield();
	}
	if (sched_getcpu() != cpu) {
		fprintf(stderr, "trial: on CPU %d, not %d\n", sched_getcpu(), cpu);
		exit(1);
	}
}

/* Goes to the CPU of the page and opens its key, and it alone, for the instruction that is made again. */
static void touched(int number, siginfo_t *info, void *context)
{
	ucontext_t *user = context;
	char *saved = (char *)user->uc_mcontext.fpregs;
	int which = (uint64_t)info->si_addr - (uint64_t)pages[1] < PAGE;

	if (info->si_code != SEGV_PKUERR)
		abort();
	faults++;
	move(which);
	*(uint32_t *)(saved + pkru_offset) = 3u << 2 * keys[!which];
	*(uint64_t *)(saved + XSAVE_HEADER) |= 1u << PKRU_PART;
}

static void make_pages(void)
{
	unsigned size, unused;
	struct sigaction action = { .sa_sigaction = touched, .sa_flags = SA_SIGINFO };

	__get_cpuid_count(0xd, PKRU_PART, &size, &pkru_offset, &unused, &unused);
	for (int which = 0; which < 2; which++) {
		pages[which] = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (pages[which] == MAP_FAILED)
			fail("mmap");
		*pages[which] = 0;
		keys[which] = pkey_alloc(0, PKEY_DISABLE_ACCESS);
		if (keys[which] < 0)
			fail("pkey_alloc");
		if (pkey_mprotect((void *)pages[which], PAGE, PROT_READ | PROT_WRITE, keys[which]))
			fail("pkey_mprotect");
	}
	if (sigaction(SIGSEGV, &action, NULL))
		fail("sigaction");
}

static void load(const char *path)
{
	struct bpf_object *object = bpf_object__open_file(path, NULL);
	struct sched_param none = { 0 };

	if (!object || bpf_object__load(object))
		fail("loading the scheduler");
	if (!bpf_map__attach_struct_ops(bpf_object__find_map_by_name(object, "trial")))
		fail("taking the scheduler");
	wanted = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED,
		      bpf_map__fd(bpf_object__find_map_by_name(object, "wanted")), 0);
	if (wanted == MAP_FAILED)
		fail("mmap of a map");
	*wanted = sched_getcpu();
	if (sched_setscheduler(0, SCHED_EXT, &none))
		fail("sched_setscheduler");
}

static int earlier(const void *one, const void *other)
{
	uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;

	return (a > b) - (a < b);
}

int main(int count_of, char **words)
{
	if (count_of != 5) {
		fprintf(stderr, "usage: trial SCHEDULER.o affinity|sched_ext alone|keys COUNT\n");
		return 2;
	}
	int by_keys = !strcmp(words[3], "keys");
	long count = atol(words[4]);
	uint64_t *took = calloc(count, sizeof(*took));
	uint64_t sum = 0;

	by_affinity = !strcmp(words[2], "affinity");
	if (!by_affinity)
		load(words[1]);
	if (by_keys)
		make_pages();
	for (long turn = 0; turn < count; turn++) {
		uint64_t start = now_ns();

		if (by_keys)
			++*pages[turn & 1];
		else
			move(turn & 1);
		took[turn] = now_ns() - start;
		sum += took[turn];
	}
	if (by_keys && faults != (unsigned long)count) {
		fprintf(stderr, "trial: %lu faults, not %ld\n", faults, count);
		return 1;
	}
	qsort(took, count, sizeof(*took), earlier);
	printf("%s %s: mean %lu ns, half below %lu ns\n", words[2], words[3], sum / count, took[count / 2]);
	return 0;
}
