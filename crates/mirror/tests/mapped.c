// A program that maps a file read-only, reads it until the shim has mapped copies, and then does something.
// usage: mapped SCENARIO FILE. Prints what went wrong, or "ok", which is what it does without the shim too
// where it need not wait for copies.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *path;
static size_t size;
static const volatile uint64_t *words;

static void fail(const char *what) {
    printf("%s: %s\n", what, strerror(errno));
    exit(1);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

// Bytes of copies that are mapped between two addresses.
static size_t mirrored(const volatile void *from, size_t bytes) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[4096];
    size_t sum = 0, start, end;
    while (fgets(line, sizeof line, maps)) {
        if (!strstr(line, "/dev/shm/hither-") || sscanf(line, "%zx-%zx", &start, &end) != 2) continue;
        if (start >= (size_t)from && end <= (size_t)from + bytes) sum += end - start;
    }
    fclose(maps);
    return sum;
}

static const volatile void *map(int flags) {
    int fd = open(path, O_RDONLY);
    if (fd < 0) fail("open");
    void *address = mmap(NULL, size, PROT_READ, flags, fd, 0);
    if (address == MAP_FAILED) fail("mmap");
    close(fd);
    return address;
}

static uint64_t read_part(size_t bytes) {
    uint64_t sum = 0;
    for (size_t i = 0; i < bytes / 8; i += 64) sum += words[i];
    return sum;
}

// Reads until as much is mirrored, or not for `seconds`.
static int wait_for(size_t bytes, size_t of, double seconds) {
    for (double start = now(); now() - start < seconds;) {
        read_part(of);
        if (mirrored(words, size) >= bytes) return 1;
    }
    return 0;
}

// Another process writes one word of the file: this returns when it has.
static void write_word(size_t number, uint64_t value) {
    char command[4096];
    snprintf(command, sizeof command, "unset LD_PRELOAD; printf '\\%o' | dd of='%s' bs=1 seek=%zu conv=notrunc 2> /dev/null", (unsigned)value, path, number * 8);
    if (system(command) != 0) fail("dd");
}

static sigjmp_buf back;
static void jump(int signal) { siglongjmp(back, signal); }

static _Atomic uint64_t finished;
static _Atomic int stop;
static void *check(void *unused) {
    (void)unused;
    uint64_t reads = 0;
    while (!stop) {
        for (size_t i = 0; i < size / 8 && !stop; i += 512) {
            uint64_t least = finished;
            if (words[i] < least) {
                printf("word %zu is %lu after %lu was written\n", i, (unsigned long)words[i], (unsigned long)least);
                exit(1);
            }
            reads++;
        }
    }
    return NULL;
}

int main(int count, char **argument) {
    setvbuf(stdout, NULL, _IONBF, 0);
    if (count != 3) return 2;
    const char *scenario = argument[1];
    path = argument[2];
    struct stat status;
    if (stat(path, &status) != 0) fail("stat");
    size = status.st_size;
    words = map(strcmp(scenario, "shared") == 0 ? MAP_SHARED : MAP_PRIVATE);
    uint64_t sum = read_part(size), first = words[0];
    if (strcmp(scenario, "part") == 0) {
        size_t part = size / 8;
        if (!wait_for(part, part, 20)) fail("no copies");
        // What is read once is not copied.
        read_part(size);
        wait_for(size, part, 1);
        printf("ok %zu of %zu\n", mirrored(words, size), part);
        return 0;
    }
    if (strcmp(scenario, "endless") == 0) {
        // The file is full of one number, and beside it lies the least that it may be.
        char other[4096];
        snprintf(other, sizeof other, "%s.least", path);
        int fd = open(other, O_RDONLY);
        const volatile uint64_t *least = mmap(NULL, 8, PROT_READ, MAP_SHARED, fd, 0);
        if (least == MAP_FAILED) fail("the other file");
        for (size_t i = 0;; i = (i + 512) % (size / 8)) {
            uint64_t expected = *least, found = words[i];
            if (found < expected) {
                printf("word %zu is %lu after %lu was written\n", i, (unsigned long)found, (unsigned long)expected);
                return 1;
            }
            if (i == 0 && mirrored(words, size)) puts("copies");
        }
    }
    if (strcmp(scenario, "none") == 0) {
        printf("%s\n", wait_for(1, size, 3) ? "copies" : "ok");
        return 0;
    }
    if (!wait_for(size, size, 20)) fail("no copies");
    if (read_part(size) != sum) fail("another sum");
    if (strcmp(scenario, "hold") == 0) {
        puts("held");
        pause();
    } else if (strcmp(scenario, "write") == 0 || strcmp(scenario, "shared") == 0) {
        double start = now();
        write_word(1000, 77);
        if ((words[1000] & 255) != 77) fail("old bytes after a write");
        if (mirrored(words, size)) fail("still copies");
        if (now() - start > 5) fail("the writer waited");
    } else if (strcmp(scenario, "open") == 0) {
        // This process itself writes, as another could.
        int fd = open(path, O_RDWR);
        if (fd < 0 || mirrored(words, size)) fail("open for writing");
        uint64_t value = 78;
        if (pwrite(fd, &value, 8, 8000) != 8 || words[1000] != 78) fail("write");
        if (wait_for(1, size, 2)) fail("copies beside a writer");
        close(fd);
        if (!wait_for(size, size, 20) || words[1000] != 78) fail("no copies again");
    } else if (strcmp(scenario, "truncate") == 0) {
        if (truncate(path, size / 2) != 0) fail("truncate");
        signal(SIGBUS, jump);
        volatile uint64_t last = 0;
        if (sigsetjmp(back, 1) == 0) {
            last = words[size / 8 - 1];
            fail("no SIGBUS behind the end");
        }
        if (words[0] != first) fail("the beginning");
    } else if (strcmp(scenario, "rename") == 0 || strcmp(scenario, "unlink") == 0) {
        char other[4096];
        snprintf(other, sizeof other, "%s.new", path);
        int fd = open(other, O_RDWR | O_CREAT | O_TRUNC, 0600);
        uint64_t value = 1234567;
        if (ftruncate(fd, size) != 0 || pwrite(fd, &value, 8, 0) != 8) fail("another file");
        close(fd);
        if (strcmp(scenario, "rename") == 0 ? rename(other, path) : unlink(path)) fail(scenario);
        usleep(300000);
        if (read_part(size) != sum || mirrored(words, size) != size) fail("the old file");
        if (strcmp(scenario, "rename") == 0) {
            const volatile uint64_t *old = words;
            words = map(MAP_PRIVATE);
            if (words[0] != value || old[0] != first) fail("the new file");
            if (!wait_for(size, size, 20)) fail("no copies of the new file");
            if (words[0] != value || old[0] != first || mirrored(old, size) != size) fail("both files");
        }
        unlink(other);
    } else if (strcmp(scenario, "fork") == 0) {
        int to[2];
        if (pipe(to) != 0) fail("pipe");
        pid_t child = fork();
        if (child == 0) {
            size_t had = mirrored(words, size);
            char byte;
            if (read(to[0], &byte, 1) != 1) _exit(2);
            if (had || (words[1000] & 255) != 79) _exit(3);
            // It gets copies of its own.
            _exit(wait_for(size, size, 20) ? 0 : 4);
        }
        usleep(100000);
        if (mirrored(words, size) != size) fail("the parent has lost its copies");
        write_word(1000, 79);
        if ((words[1000] & 255) != 79 || write(to[1], "x", 1) != 1) fail("old bytes in the parent");
        int ended;
        if (waitpid(child, &ended, 0) != child || ended != 0) {
            printf("the child ended with %x\n", ended);
            return 1;
        }
    } else if (strcmp(scenario, "exec") == 0) {
        if (system("exit 7") != 7 << 8 || mirrored(words, size) != size) fail("system");
        execl("/proc/self/exe", "mapped", "copies", path, (char *)NULL);
        fail("exec");
    } else if (strcmp(scenario, "protect") == 0) {
        uint64_t *own = (uint64_t *)words;
        if (mprotect(own, 8192, PROT_READ | PROT_WRITE) != 0 || mirrored(words, size)) fail("mprotect");
        own[3] = 99;
        usleep(300000);
        if (own[3] != 99 || wait_for(1, size, 2)) fail("its own page");
    } else if (strcmp(scenario, "unmap") == 0) {
        // A part of it becomes something else.
        char *at = (char *)words + size / 2;
        if (munmap(at, 65536) != 0) fail("munmap");
        char *other = mmap(at, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        if (other != at) fail("mmap");
        memset(other, 5, 65536);
        char *end = mremap((char *)words, size / 4, size / 4, MREMAP_MAYMOVE | MREMAP_FIXED, at + 65536);
        if (end == MAP_FAILED || *(uint64_t *)end != first) fail("mremap");
        usleep(300000);
        for (int i = 0; i < 65536; i++)
            if (other[i] != 5) fail("anonymous memory");
        if (*(uint64_t *)end != first) fail("moved");
    } else if (strcmp(scenario, "close") == 0) {
        // As daemons do.
        for (int fd = 3; fd < 1024; fd++) close(fd);
        int fd = open("/dev/null", O_RDONLY);
        if (fd != 3) fail("somebody has descriptors open");
        write_word(1000, 80);
        if ((words[1000] & 255) != 80) fail("old bytes after all was closed");
    } else if (strcmp(scenario, "threads") == 0) {
        pthread_t threads[3];
        for (int i = 0; i < 3; i++) pthread_create(&threads[i], NULL, check, NULL);
        for (uint64_t round = 1; round <= 3; round++) {
            if (!wait_for(size, size, 30)) fail("no copies again");
            int fd = open(path, O_WRONLY);
            uint64_t *buffer = malloc(size);
            for (size_t i = 0; i < size / 8; i++) buffer[i] = round;
            if (write(fd, buffer, size) != (ssize_t)size) fail("write");
            finished = round;
            close(fd);
            free(buffer);
        }
        stop = 1;
        for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    } else if (strcmp(scenario, "watched") == 0) {
        puts("held");
        getchar();
        usleep(500000);
        if ((words[1000] & 255) != 81 || mirrored(words, size)) fail("old bytes half a second after a write");
    } else if (strcmp(scenario, "user") == 0) {
        // Every thread becomes another user: the helper must answer the C library's signal.
        if (setuid(65534) != 0 || setuid(0) == 0 || read_part(size) != sum) fail("setuid");
    } else if (strcmp(scenario, "lock") == 0) {
        mlock((void *)words, size);
        if (mirrored(words, size)) fail("copies of locked memory");
    } else if (strcmp(scenario, "copies") != 0) {
        return 2;
    }
    puts("ok");
    return 0;
}
