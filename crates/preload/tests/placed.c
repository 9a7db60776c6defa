/* Blocks of every kind, used as programs use them. What is found is printed or ends the program. */
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define KIB 1024UL
#define MIB (1024UL * KIB)
#define CHECK(fact) \
    do { \
        if (!(fact)) { \
            printf("line %d: %s\n", __LINE__, #fact); \
            exit(1); \
        } \
    } while (0)

/* Mode of the policy of an address itself, as the kernel numbers it; 0 for none. */
static int mode_of(const void *address)
{
    int mode = -1;
    unsigned long mask[17] = {0};
    CHECK(syscall(SYS_get_mempolicy, &mode, mask, 1024UL, address, 2UL) == 0);
    return mode;
}

static void tell(const char *name, const void *address)
{
    printf("%s %d\n", name, mode_of(address));
}

__attribute__((noinline)) static void *from_here(size_t bytes)
{
    void *volatile got = malloc(bytes);
    return got;
}

/* The policy of one block of every kind and size. */
static void kinds(void)
{
    char *got = NULL;
    tell("small", memset(malloc(100), 1, 100));
    tell("medium", memset(malloc(300 * KIB), 1, 300 * KIB));
    tell("large", memset(malloc(5 * MIB), 1, 5 * MIB));
    tell("here", memset(from_here(200), 1, 200));
    got = mmap(NULL, 3 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    tell("map", memset(got, 1, 3 * MIB));
    CHECK(munmap(got, 3 * MIB) == 0);
    got = mmap(NULL, 3 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    tell("shared", memset(got, 1, 3 * MIB));
}

static int is_all(const unsigned char *bytes, int value, size_t count)
{
    return count == 0 || (bytes[0] == value && memcmp(bytes, bytes + 1, count - 1) == 0);
}

/* Sizes and alignments around every limit, by every function. */
static void functions(void)
{
    static const size_t sizes[] = {0, 1, 15, 16, 17, 127, 128, 129, 4095, 4096, 4097, 65535, 65536, 65537,
                                   MIB - 1, MIB, MIB + 1, 2 * MIB, 2 * MIB + 1, 9 * MIB};
    void *place = NULL;
    for (size_t at = 0; at < sizeof(sizes) / sizeof(*sizes); at++) {
        size_t bytes = sizes[at];
        for (int round = 0; round < 3; round++) {
            unsigned char *got = malloc(bytes);
            CHECK(got != NULL && (uintptr_t)got % 16 == 0 && malloc_usable_size(got) >= bytes);
            memset(got, 0xee, bytes);
            free(got);
            got = calloc(1, bytes);
            CHECK(is_all(got, 0, bytes));
            memset(got, 7, bytes);
            got = realloc(got, bytes + 70 * KIB);
            CHECK(is_all(got, 7, bytes));
            memset(got, 8, bytes + 70 * KIB);
            got = realloc(got, bytes / 3 + 1);
            CHECK(is_all(got, 8, bytes / 3 + 1));
            got = reallocarray(got, 3, MIB);
            CHECK(is_all(got, 8, bytes / 3 + 1));
            memset(got, 9, 3 * MIB);
            CHECK(realloc(got, 0) == NULL);
            for (size_t align = 16; align <= 4 * MIB; align *= 4) {
                CHECK(posix_memalign(&place, align, bytes) == 0 && (uintptr_t)place % align == 0);
                memset(place, 1, bytes);
                free(place);
                got = memalign(align, bytes);
                CHECK((uintptr_t)got % align == 0);
                memset(got, 1, bytes);
                free(got);
            }
            got = valloc(bytes);
            CHECK((uintptr_t)got % 4096 == 0);
            free(got);
            got = pvalloc(bytes);
            CHECK((uintptr_t)got % 4096 == 0);
            free(got);
        }
    }
    errno = 77;
    free(malloc(5 * MIB));
    free(malloc(100));
    CHECK(errno == 77);
    CHECK(posix_memalign(&place, 3, 5 * MIB) == EINVAL);
    CHECK(calloc((size_t)1 << 62, 8) == NULL && errno == ENOMEM);
    CHECK(malloc((size_t)1 << 62) == NULL && errno == ENOMEM);
    CHECK(reallocarray(NULL, (size_t)1 << 62, 8) == NULL && errno == ENOMEM);
    puts("functions work");
}

/* Two rules in turns on the same addresses, and the allocator's own memory in between. */
static void policies_left(void)
{
    for (int round = 0; round < 40; round++) {
        /* Both have slots of 4 MiB. */
        size_t bytes = (round % 2 == 0 ? 5 : 7) * MIB / 2;
        char *got = malloc(bytes);
        tell(round % 2 == 0 ? "even" : "odd", memset(got, 1, bytes));
        free(got);
        got = malloc(700 * KIB);
        tell("own", memset(got, 1, 700 * KIB));
        free(got);
    }
}

#define SLOTS 256
static _Atomic(unsigned char *) slots[SLOTS];
static int rounds;

static size_t some_size(unsigned *seed)
{
    unsigned number = rand_r(seed);
    size_t most = number % 100 < 90 ? 2000 : number % 100 < 98 ? 200 * KIB : 3 * MIB;
    return 1 + rand_r(seed) % most;
}

/* Blocks go from thread to thread: each is marked at both ends with its own size. */
static void *stress(void *argument)
{
    unsigned seed = (unsigned)(uintptr_t)argument;
    for (int round = 0; round < rounds; round++) {
        size_t bytes = some_size(&seed) + 16;
        unsigned char *got = rand_r(&seed) % 4 == 0 ? calloc(1, bytes) : malloc(bytes);
        CHECK(got != NULL);
        *(size_t *)got = bytes;
        got[bytes - 1] = (unsigned char)bytes;
        got = atomic_exchange(&slots[rand_r(&seed) % SLOTS], got);
        if (got == NULL)
            continue;
        bytes = *(size_t *)got;
        CHECK(got[bytes - 1] == (unsigned char)bytes);
        if (rand_r(&seed) % 8 == 0) {
            size_t more = some_size(&seed) + 16;
            got = realloc(got, more);
            CHECK(*(size_t *)got == bytes);
        }
        free(got);
    }
    return NULL;
}

static size_t mapping_count(void)
{
    char line[512];
    size_t count = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps != NULL);
    while (fgets(line, sizeof line, maps) != NULL)
        count++;
    fclose(maps);
    return count;
}

static void storm(int threads)
{
    pthread_t all[256];
    for (int thread = 0; thread < threads; thread++)
        CHECK(pthread_create(&all[thread], NULL, stress, (void *)(uintptr_t)(thread + 1)) == 0);
    for (int thread = 0; thread < threads; thread++)
        CHECK(pthread_join(all[thread], NULL) == 0);
    for (int slot = 0; slot < SLOTS; slot++)
        free(atomic_exchange(&slots[slot], NULL));
}

static volatile sig_atomic_t ticks;
static void tick(int signal)
{
    (void)signal;
    ticks++;
}

/* Forks and new programs while other threads allocate and a timer interrupts. */
static void forks(const char *own, int count)
{
    pthread_t threads[3];
    struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART};
    timer_t timer;
    struct itimerspec often = {{0, 500000}, {0, 500000}};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    CHECK(timer_create(CLOCK_MONOTONIC, NULL, &timer) == 0 && timer_settime(timer, 0, &often, NULL) == 0);
    rounds = 1 << 30;
    for (int thread = 0; thread < 3; thread++)
        CHECK(pthread_create(&threads[thread], NULL, stress, (void *)(uintptr_t)(thread + 1)) == 0);
    for (int round = 0; round < count; round++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            rounds = 50;
            alarm(20);
            stress((void *)(uintptr_t)round);
            free(malloc(5 * MIB));
            if (round % 2 == 0)
                execl(own, own, "nothing", NULL);
            _exit(0);
        }
        int status = -1;
        while (waitpid(child, &status, 0) < 0)
            CHECK(errno == EINTR);
        if (status != 0)
            printf("round %d: status %#x\n", round, status);
        CHECK(status == 0);
    }
    printf("%d forks\n", count);
    fflush(stdout);
    _exit(0);
}

static void *tell_cpus(void *argument)
{
    cpu_set_t set;
    CHECK(sched_getaffinity(0, sizeof set, &set) == 0);
    int first = -1;
    for (int cpu = 0; cpu < CPU_SETSIZE && first < 0; cpu++)
        if (CPU_ISSET(cpu, &set))
            first = cpu;
    printf("%s %d of %d\n", (char *)argument, first, CPU_COUNT(&set));
    return NULL;
}

static void *cancelled(void *argument)
{
    for (;;)
        pause();
    return argument;
}

/* CPUs of threads as their first instruction finds them. */
static void threads(void)
{
    pthread_t thread[4], gone;
    tell_cpus("first");
    for (int at = 0; at < 3; at++) {
        CHECK(pthread_create(&thread[at], NULL, tell_cpus, "thread") == 0);
        /* It gives its place back as it ends, and not when it is joined. */
        struct stat tasks;
        do {
            usleep(1000);
            CHECK(stat("/proc/self/task", &tasks) == 0);
        } while (tasks.st_nlink > 2 + 1);
    }
    for (int at = 0; at < 3; at++)
        CHECK(pthread_join(thread[at], NULL) == 0);
    for (int at = 0; at < 5; at++) {
        CHECK(pthread_create(&gone, NULL, cancelled, NULL) == 0);
        CHECK(pthread_cancel(gone) == 0 && pthread_join(gone, NULL) == 0);
    }
    CHECK(pthread_create(&gone, NULL, tell_cpus, "after") == 0 && pthread_join(gone, NULL) == 0);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        tell_cpus("child");
        fflush(stdout);
        _exit(0);
    }
    CHECK(waitpid(child, NULL, 0) == child);
}

int main(int count, char **words)
{
    const char *what = count > 1 ? words[1] : "";
    if (strcmp(what, "kinds") == 0)
        kinds();
    else if (strcmp(what, "functions") == 0)
        functions();
    else if (strcmp(what, "left") == 0)
        policies_left();
    else if (strcmp(what, "forks") == 0)
        forks(words[0], atoi(words[2]));
    else if (strcmp(what, "threads") == 0)
        threads();
    else if (strcmp(what, "storm") == 0) {
        rounds = atoi(words[3]);
        storm(atoi(words[2]));
        size_t before = mapping_count();
        storm(atoi(words[2]));
        size_t after = mapping_count();
        /* Stacks and arenas of the allocator behind come and go. */
        if (after > before + 300)
            printf("%zu mappings became %zu\n", before, after);
        puts("storm is over");
    } else
        CHECK(strcmp(what, "nothing") == 0);
    return 0;
}
