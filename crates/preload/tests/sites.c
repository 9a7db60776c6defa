/* Allocations at known lines. A comment "@NAME" marks the line that a test expects. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define KIB 1024UL
static void *volatile keep;
static void *volatile kept;

static void tell(const char *name, const void *address)
{
    printf("%s %p %ld\n", name, address, syscall(SYS_gettid));
    fflush(stdout);
}

__attribute__((noinline)) static void *wrapper(size_t bytes)
{
    void *got = malloc(bytes); /* @wrapper */
    memset(got, 1, bytes);
    return got;
}

static void wrapped(void)
{
    char *got = wrapper(100 * KIB); /* @wrapped */
    tell("wrapped", got);
    free(got);
}

static void every_function(void)
{
    void *got = NULL;
    keep = malloc(70 * KIB); /* @malloc */
    tell("malloc", keep);
    keep = calloc(71, KIB); /* @calloc */
    tell("calloc", keep);
    if (posix_memalign(&got, 4096, 72 * KIB) != 0) /* @posix_memalign */
        abort();
    tell("posix_memalign", got);
    keep = aligned_alloc(4096, 76 * KIB); /* @aligned_alloc */
    tell("aligned_alloc", keep);
    keep = memalign(64, 74 * KIB); /* @memalign */
    tell("memalign", keep);
    keep = valloc(75 * KIB); /* @valloc */
    tell("valloc", keep);
    keep = pvalloc(80 * KIB); /* @pvalloc */
    tell("pvalloc", keep);
    keep = reallocarray(NULL, 77, KIB); /* @reallocarray */
    tell("reallocarray", keep);
    keep = strdup(memset(calloc(1, 90 * KIB), 'x', 78 * KIB)); /* @strdup */
    tell("strdup", keep);
}

static void reallocated(void)
{
    char *got = malloc(100); /* too small */
    got = realloc(got, 200 * KIB); /* @grown */
    tell("grown", got);
    got[200 * KIB - 1] = 5;
    got = realloc(got, 50); /* smaller than the threshold: the end of it */
    tell("shrunk", got);
    errno = 77;
    if (realloc(got, (size_t)1 << 60) != NULL || errno != ENOMEM)
        abort();
    keep = malloc(300 * KIB); /* @failing */
    tell("failing", keep);
    if (realloc(keep, (size_t)1 << 60) != NULL)
        abort();
    errno = 77;
    free(keep);
    if (errno != 77)
        abort();
    tell("failed", got);
    free(got);
}

static void mapped(void)
{
    int rights = PROT_READ | PROT_WRITE;
    char *got = mmap(NULL, 256 * KIB, rights, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); /* @mmap */
    tell("mmap", got);
    munmap(got + 128 * KIB, 128 * KIB);
    got = mremap(got, 128 * KIB, 512 * KIB, MREMAP_MAYMOVE); /* @mremap */
    tell("mremap", got);
    munmap(got, 512 * KIB);
    got = mmap(NULL, 1024 * KIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); /* @reserve */
    tell("reserve", got);
}

static void *thread(void *argument)
{
    void *got = calloc(1, 128 * KIB); /* @thread */
    (void)argument;
    tell("thread", got);
    return got;
}

static void threads(void)
{
    for (int i = 0; i < 3; i++) {
        pthread_t other;
        void *got;
        pthread_create(&other, NULL, thread, NULL);
        pthread_join(other, &got);
        /* Freed by another thread, after its own has ended. */
        free(got);
    }
}

static void forked(void)
{
    keep = malloc(400 * KIB); /* @before_fork */
    tell("before_fork", keep);
    for (int bare = 0; bare < 2; bare++) {
        pid_t child = bare ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
        if (child == 0) {
            free(keep);
            kept = malloc(500 * KIB); /* @in_child */
            tell("in_child", kept);
            free(kept);
            _exit(0);
        }
        waitpid(child, NULL, 0);
    }
    free(keep);
}

static void in_loop(long rounds)
{
    for (long i = 0; i < rounds; i++) {
        char *got = malloc(96 * KIB); /* @loop */
        keep = got; /* or the compiler leaves both out */
        free(got);
    }
}

static void storm_round(unsigned *seed, void **places, int count)
{
    *seed = *seed * 1103515245 + 12345;
    void **place = &places[(*seed >> 16) % count];
    size_t bytes = (*seed >> 8) % (128 * KIB);
    if ((*seed >> 28) & 1) {
        *place = realloc(*place, bytes + 1);
    } else {
        free(*place);
        *place = malloc(bytes);
    }
    if (*place != NULL && bytes > 0)
        memset(*place, 1, bytes < 64 ? bytes : 64);
}

static void *storm(void *argument)
{
    unsigned seed = (unsigned)(size_t)argument;
    void *places[64] = {0};
    for (int i = 0; i < 20000; i++)
        storm_round(&seed, places, 64);
    for (int i = 0; i < 64; i++)
        free(places[i]);
    return NULL;
}

static void storms(void)
{
    pthread_t others[8];
    for (size_t i = 0; i < 8; i++)
        pthread_create(&others[i], NULL, storm, (void *)(i + 1));
    for (size_t i = 0; i < 8; i++)
        pthread_join(others[i], NULL);
}

static void loaded(const char *path)
{
    void *library = dlopen(path, RTLD_NOW);
    if (library == NULL)
        abort();
    void *(*make)(size_t) = (void *(*)(size_t))dlsym(library, "make");
    tell("plugin", make(600 * KIB));
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    const char *more = argc > 2 ? argv[2] : "0";
    if (strcmp(what, "wrapped") == 0) wrapped();
    if (strcmp(what, "every") == 0) every_function();
    if (strcmp(what, "realloc") == 0) reallocated();
    if (strcmp(what, "mmap") == 0) mapped();
    if (strcmp(what, "threads") == 0) threads();
    if (strcmp(what, "fork") == 0) forked();
    if (strcmp(what, "loop") == 0) in_loop(atol(more));
    if (strcmp(what, "storm") == 0) storms();
    if (strcmp(what, "dlopen") == 0) loaded(more);
    if (strcmp(what, "closed") == 0) {
        /* A daemon closes what it does not know, and opens its own. */
        in_loop(1);
        for (int file = 3; file < 64; file++)
            close(file);
        in_loop(3000);
    }
    if (strcmp(what, "killed") == 0) {
        in_loop(atol(more));
        keep = malloc(640 * KIB); /* @killed */
        kill(getpid(), SIGKILL);
    }
    if (strcmp(what, "exec") == 0) {
        wrapped();
        execl(argv[0], argv[0], "wrapped", NULL);
    }
    return 0;
}
