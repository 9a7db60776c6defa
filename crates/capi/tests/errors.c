/* Every call of the library with every wrong argument that C can pass, and after fork(). */
#include <errno.h>
#include <hither.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static int line_failed;

/* The call returns this code, and a sentence goes with it. */
#define REFUSED(code, call) refused(__LINE__, #call, code, (call))
/* The call returns NULL and leaves this code. */
#define NOTHING(code, call) \
  refused(__LINE__, #call, code, (call) == NULL ? hither_last_code() : INT_MAX)
#define HOLDS(condition) holds(__LINE__, #condition, !!(condition))

static void holds(int line, const char *text, int holds) {
  if (!holds) {
    fprintf(stderr, "errors.c:%d: %s; last error: %s\n", line, text, hither_last_error());
    line_failed = line;
  }
}

static void refused(int line, const char *call, int wanted, int found) {
  if (found != wanted || hither_last_code() != wanted ||
      (strlen(hither_last_error()) > 10) != (wanted != 0)) {
    fprintf(stderr, "errors.c:%d: %s: %d instead of %d: %s\n", line, call, found, wanted,
            hither_last_error());
    line_failed = line;
  }
}

static char from[8192] __attribute__((aligned(4096))), to[8192] __attribute__((aligned(4096)));

static void fill(struct hither_request *req) {
  req->kind = HITHER_REPLICATE;
  req->src_base = from;
  req->dst_base = to;
  req->length = sizeof from;
  req->flags = 0;
  req->reserved = 0;
}

/* In a process that may use the library. */
static void works(void) {
  int handle = hither_open("");
  HOLDS(handle >= 0);
  struct hither_request *req = hither_alloc_request(handle);
  HOLDS(req != NULL);
  fill(req);
  HOLDS(hither_submit_request(req) == 0);
  HOLDS(hither_wait(handle, 20000) == req);
  HOLDS(req->status == HITHER_DONE && req->bytes == sizeof from && req->moved == 2);
  HOLDS(hither_free_request(req) == 0 && hither_close(handle) == 0);
}

static void opening(void) {
  REFUSED(HITHER_ENOENT, hither_open("/dev/memif0"));
  HOLDS(strstr(hither_last_error(), "/dev/memif0") != NULL);
  REFUSED(HITHER_ENOENT, hither_open("\xff%s"));
  struct hither_config config;
  memset(&config, 0, sizeof config);
  REFUSED(HITHER_EFAULT, hither_open_config(NULL, sizeof config));
  REFUSED(HITHER_EINVAL, hither_open_config(&config, 0));
  REFUSED(HITHER_EINVAL, hither_open_config(&config, HITHER_CONFIG_BYTES_0_1 - 1));
  REFUSED(HITHER_EINVAL, hither_open_config(&config, SIZE_MAX));
#define WITH(field, value, code)                               \
  do {                                                         \
    memset(&config, 0, sizeof config);                         \
    config.field = value;                                      \
    REFUSED(code, hither_open_config(&config, sizeof config)); \
  } while (0)
  WITH(name, "other", HITHER_ENOENT);
  WITH(flags, 16, HITHER_EINVAL);
  WITH(flags, 1u << 31, HITHER_EINVAL);
  WITH(flags, HITHER_EXCHANGE_ALWAYS | HITHER_EXCHANGE_NEVER, HITHER_EINVAL);
  WITH(capacity, 32769, HITHER_EINVAL);
  WITH(capacity, UINT32_MAX, HITHER_EINVAL);
  WITH(workers, 257, HITHER_EINVAL);
  WITH(workers, UINT32_MAX, HITHER_EINVAL);
  WITH(copiers, 257, HITHER_EINVAL);
  WITH(cpu_count, 1, HITHER_EFAULT);
  WITH(cpu_count, SIZE_MAX, HITHER_EINVAL);
  uint32_t no_cpu = 1000000, some_cpu = 1023;
  WITH(cpus, &no_cpu, HITHER_EINVAL);
#undef WITH
  config.cpu_count = 1;
  REFUSED(HITHER_EINVAL, hither_open_config(&config, sizeof config));
  config.cpus = &some_cpu;
  REFUSED(HITHER_EINVAL, hither_open_config(&config, sizeof config));
  memset(&config, 0, sizeof config);
  config.spin_us = 1;
  config.flags = HITHER_NO_SPIN;
  REFUSED(HITHER_EINVAL, hither_open_config(&config, sizeof config));
  /* A structure of the future: fine while it asks for nothing new. */
  struct {
    struct hither_config known;
    uint64_t news[2];
  } future;
  memset(&future, 0, sizeof future);
  future.known.capacity = 1;
  int handle = hither_open_config(&future.known, sizeof future);
  HOLDS(handle >= 0 && hither_close(handle) == 0);
  future.news[1] = 1;
  REFUSED(HITHER_E2BIG, hither_open_config(&future.known, sizeof future));
}

static void handles(int handle) {
  int closed = hither_open(NULL);
  HOLDS(closed >= 0 && closed != handle && hither_close_how(closed, HITHER_ABANDON) == 0);
  int bad[] = {-1, INT_MIN, INT_MAX, 0, 2, closed};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    char text[8];
    REFUSED(HITHER_EBADF, hither_close(bad[i]));
    REFUSED(HITHER_EBADF, hither_close_how(bad[i], HITHER_ABANDON));
    NOTHING(HITHER_EBADF, hither_alloc_request(bad[i]));
    NOTHING(HITHER_EBADF, hither_retrieve(bad[i]));
    NOTHING(HITHER_EBADF, hither_wait(bad[i], 0));
    NOTHING(HITHER_EBADF, hither_wait(bad[i], -1));
    REFUSED(HITHER_EBADF, hither_describe(bad[i], text, sizeof text));
    NOTHING(HITHER_EBADF, hither_backend_name(bad[i], 0));
  }
  REFUSED(HITHER_EINVAL, hither_close_how(handle, 2));
  REFUSED(HITHER_EINVAL, hither_close_how(handle, -1));
  NOTHING(HITHER_EINVAL, hither_wait(handle, -2));
  NOTHING(HITHER_EINVAL, hither_wait(handle, INT_MIN));
  NOTHING(HITHER_OK, hither_wait(handle, 1));
  NOTHING(HITHER_OK, hither_retrieve(handle));
  NOTHING(HITHER_OK, hither_retrieve_completed());
  NOTHING(HITHER_EINVAL, hither_backend_name(handle, 255));
  NOTHING(HITHER_EINVAL, hither_backend_name(handle, UINT32_MAX));
  REFUSED(HITHER_EFAULT, hither_describe(handle, NULL, 1));
  char all[2048], some[5] = "????";
  int length = hither_describe(handle, NULL, 0);
  HOLDS(length > 10 && hither_describe(handle, all, sizeof all) == length);
  HOLDS((int)strlen(all) == length);
  HOLDS(hither_describe(handle, some, 4) == length && strncmp(some, all, 3) == 0 && !some[3]);
  HOLDS(hither_describe(handle, some, 1) == length && !some[0]);
}

static void requests(int handle) {
  struct hither_request own, *req = hither_alloc_request(handle), before;
  HOLDS(req != NULL && req->kind == 0 && req->node == -1 && req->status == HITHER_BLANK);
  memset(&own, 0, sizeof own);
  struct hither_request *bad[] = {&own, req - 1, (void *)((char *)req + 8), req + 4096,
                                  (void *)1,     (void *)UINTPTR_MAX};
  int (*calls[])(struct hither_request *) = {hither_submit_request, hither_cancel,
                                             hither_free_request};
  for (size_t call = 0; call < 3; call++) {
    REFUSED(HITHER_EFAULT, calls[call](NULL));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
      REFUSED(HITHER_EINVAL, calls[call](bad[i]));
    }
  }
  REFUSED(HITHER_EINVAL, hither_submit_request(req)); /* as allocated */
  REFUSED(HITHER_EINVAL, hither_cancel(req));         /* not submitted */
#define WITH(field, value)                                                          \
  do {                                                                              \
    fill(req);                                                                      \
    req->field = value;                                                             \
    before = *req;                                                                  \
    REFUSED(HITHER_EINVAL, hither_submit_request(req));                             \
    HOLDS(memcmp(&before, req, sizeof before) == 0); /* still ours and unchanged */ \
  } while (0)
  WITH(kind, 0);
  WITH(kind, 3);
  WITH(kind, UINT32_MAX);
  WITH(flags, 8);
  WITH(flags, 1u << 31);
  WITH(flags, HITHER_RACE_FAIL | HITHER_RACE_BLOCK);
  WITH(src_base, NULL);
  WITH(dst_base, NULL);
  WITH(dst_base, from + 1); /* overlaps */
  WITH(dst_base, (void *)UINTPTR_MAX);
  WITH(src_base, (void *)UINTPTR_MAX);
  WITH(length, 0);
  WITH(length, UINT64_MAX);
  WITH(reserved, 1);
#define MOVE(field, value)                              \
  do {                                                  \
    fill(req);                                          \
    req->kind = HITHER_MIGRATE;                         \
    req->node = 0;                                      \
    req->field = value;                                 \
    REFUSED(HITHER_EINVAL, hither_submit_request(req)); \
  } while (0)
  MOVE(node, -1);
  MOVE(node, INT32_MIN);
  MOVE(node, 1024);
  MOVE(node, INT32_MAX);
  MOVE(src_base, from + 1);
  MOVE(length, 4095);
  MOVE(length, 0);
  MOVE(length, UINT64_MAX - 4095);
  /* Not an error of the call: nothing is mapped there, or there is no such node. */
  fill(req);
  req->kind = HITHER_MIGRATE;
  req->node = 0;
  req->src_base = (void *)4096;
  HOLDS(hither_submit_request(req) == 0 && hither_wait(handle, 20000) == req);
  HOLDS(req->status == HITHER_FAILED && req->refused[HITHER_REFUSED_UNMAPPED] == 2);
  HOLDS(hither_backend_name(handle, req->backend) != NULL);
  fill(req);
  req->dst_base = (void *)4096;
  HOLDS(hither_submit_request(req) == 0 && hither_wait(handle, 20000) == req);
  HOLDS(req->status == HITHER_FAILED && req->refused[HITHER_REFUSED_UNMAPPED] > 0);
  HOLDS(hither_free_request(req) == 0);
  REFUSED(HITHER_EINVAL, hither_free_request(req));
  REFUSED(HITHER_EINVAL, hither_submit_request(req));
  REFUSED(HITHER_EINVAL, hither_cancel(req));
}

/* A request that is under way for a while: the mover is slowed down. */
static void in_flight(void) {
  enum { COUNT = 4, BYTES = 1 << 20 };
  static char source[BYTES], target[COUNT][BYTES];
  struct hither_config config;
  memset(&config, 0, sizeof config);
  config.capacity = COUNT;
  config.batch_requests = 1;
  config.rate_limit_bytes_per_s = 8 << 20;
  int handle = hither_open_config(&config, sizeof config);
  HOLDS(handle >= 0);
  struct hither_request *req[COUNT];
  for (int i = 0; i < COUNT; i++) {
    req[i] = hither_alloc_request(handle);
    HOLDS(req[i] != NULL);
    req[i]->kind = HITHER_REPLICATE;
    req[i]->src_base = source;
    req[i]->dst_base = target[i];
    req[i]->length = BYTES;
    req[i]->tag = (uint64_t)i;
  }
  NOTHING(HITHER_EAGAIN, hither_alloc_request(handle));
  for (int i = 0; i < COUNT; i++) {
    HOLDS(hither_submit_request(req[i]) == 0);
  }
  struct hither_request *last = req[COUNT - 1];
  REFUSED(HITHER_EBUSY, hither_submit_request(last));
  REFUSED(HITHER_EBUSY, hither_free_request(last));
  HOLDS(hither_cancel(last) == 0);
  int cancelled = 0, done = 0;
  for (int i = 0; i < COUNT; i++) {
    struct pollfd set = {.fd = handle, .events = POLLIN, .revents = 0};
    struct hither_request *one;
    HOLDS(poll(&set, 1, 20000) == 1);
    if (i == 0) {
      REFUSED(HITHER_EALREADY, hither_cancel(req[0]));
    }
    one = hither_wait(handle, 20000);
    HOLDS(one != NULL);
    cancelled += one == last && one->status == HITHER_CANCELLED;
    done += one != last && one->status == HITHER_DONE;
  }
  HOLDS(cancelled == 1 && done == COUNT - 1);
  /* Requests go with their mover. */
  HOLDS(hither_submit_request(req[0]) == 0 && hither_close_how(handle, HITHER_ABANDON) == 0);
  REFUSED(HITHER_EINVAL, hither_free_request(req[0]));
  REFUSED(HITHER_EINVAL, hither_cancel(req[1]));
  REFUSED(HITHER_EBADF, hither_close(handle));
}

static void allocating(void) {
  NOTHING(HITHER_EFAULT, hither_alloc(4096, NULL, NULL, 0));
  NOTHING(HITHER_EINVAL, hither_alloc(0, "machine", NULL, 0));
  NOTHING(HITHER_EINVAL, hither_alloc(SIZE_MAX, "machine", NULL, 0));
  NOTHING(HITHER_EINVAL, hither_alloc((size_t)1 << 50, "machine", "striped", 0));
  NOTHING(HITHER_EINVAL, hither_alloc(4096, "nod:0", NULL, 0));
  HOLDS(strstr(hither_last_error(), "^^^") != NULL); /* marked where it is wrong */
  NOTHING(HITHER_EINVAL, hither_alloc(4096, "", NULL, 0));
  NOTHING(HITHER_EINVAL, hither_alloc(4096, "\xff", NULL, 0));
  NOTHING(HITHER_EINVAL, hither_alloc(4096, "mem:1000", NULL, 0));
  NOTHING(HITHER_EINVAL, hither_alloc(4096, "machine", "", 0));
  NOTHING(HITHER_EINVAL, hither_alloc(4096, "machine", "near", 0));
  NOTHING(HITHER_EINVAL, hither_alloc(4096, "machine", "bind:4", 0));
  NOTHING(HITHER_EINVAL, hither_alloc(4096, "machine", "striped:0", 0));
  NOTHING(HITHER_EINVAL, hither_alloc(4096, "machine", "bind@1000", 0));
  NOTHING(HITHER_EINVAL, hither_alloc(4096, "machine", NULL, 8));
  NOTHING(HITHER_EINVAL, hither_alloc(4096, "machine", NULL, HITHER_SMALL | HITHER_HUGE));
  char *memory = hither_alloc(8192, "machine", "striped", HITHER_SMALL | HITHER_POPULATE);
  HOLDS(memory != NULL && ((uintptr_t)memory & 4095) == 0 && memory[8191] == 0);
  REFUSED(HITHER_EFAULT, hither_free(NULL));
  REFUSED(HITHER_EINVAL, hither_free(memory + 1));
  REFUSED(HITHER_EINVAL, hither_free(from));
  HOLDS(hither_free(memory) == 0);
  REFUSED(HITHER_EINVAL, hither_free(memory));
}

static void describing_sets(void) {
  char all[1024], some[5] = "????";
  REFUSED(HITHER_EFAULT, hither_describe_set(NULL, all, sizeof all));
  REFUSED(HITHER_EFAULT, hither_describe_set("machine", NULL, 1));
  REFUSED(HITHER_EINVAL, hither_describe_set("machine - machine", all, sizeof all));
  int length = hither_describe_set("machine", NULL, 0);
  HOLDS(length > 5 && hither_describe_set("machine", all, sizeof all) == length);
  HOLDS((int)strlen(all) == length && strncmp(all, "CPUs ", 5) == 0);
  HOLDS(hither_describe_set("machine", some, 4) == length && strcmp(some, "CPU") == 0);
}

static void ranges(void) {
  char *memory = hither_alloc(8192, "machine", NULL, HITHER_SMALL);
  HOLDS(memory != NULL);
  REFUSED(HITHER_EFAULT, hither_bind_range(NULL, 4096, "machine", NULL, 0));
  REFUSED(HITHER_EFAULT, hither_bind_range(memory, 4096, NULL, NULL, 0));
  REFUSED(HITHER_EINVAL, hither_bind_range(memory + 1, 4096, "machine", NULL, 0));
  REFUSED(HITHER_EINVAL, hither_bind_range(memory, 4095, "machine", NULL, 0));
  REFUSED(HITHER_EINVAL, hither_bind_range(memory, 0, "machine", NULL, 0));
  REFUSED(HITHER_EINVAL, hither_bind_range(memory, SIZE_MAX, "machine", NULL, 0));
  REFUSED(HITHER_EINVAL, hither_bind_range((void *)4096, 4096, "machine", NULL, 0));
  REFUSED(HITHER_EINVAL, hither_bind_range(memory, 4096, "no", NULL, 0));
  REFUSED(HITHER_EINVAL, hither_bind_range(memory, 4096, "machine", "no", 0));
  REFUSED(HITHER_EINVAL, hither_bind_range(memory, 4096, "machine", "weighted:2", 0));
  REFUSED(HITHER_EINVAL, hither_bind_range(memory, 4096, "machine", NULL, 2));
  HOLDS(hither_bind_range(memory, 8192, "machine", "striped", HITHER_MOVE) == 0);
  uint64_t nodes[1024];
  struct hither_residency found;
  REFUSED(HITHER_EFAULT, hither_where(NULL, 1, nodes, 1024, &found));
  REFUSED(HITHER_EFAULT, hither_where(memory, 1, NULL, 1, &found));
  REFUSED(HITHER_EINVAL, hither_where(memory, 0, nodes, 1024, &found));
  REFUSED(HITHER_EINVAL, hither_where(memory, SIZE_MAX, nodes, 1024, &found));
  REFUSED(HITHER_EINVAL, hither_where((void *)4096, 4096, nodes, 1024, &found));
  HOLDS(hither_where(memory, 8192, NULL, 0, NULL) == 0); /* none in memory yet */
  memory[5000] = 1;
  int count = hither_where(memory + 10, 5000, nodes, 1024, &found);
  HOLDS(count > 0 && nodes[count - 1] == 1);
  HOLDS(found.pages == 2 && found.absent == 1 && found.astray == 0);
  HOLDS(found.huge == 0 || found.huge == HITHER_UNKNOWN);
  HOLDS(hither_free(memory) == 0);
}

static void binding(void) {
  REFUSED(HITHER_EINVAL, hither_unbind_thread());
  REFUSED(HITHER_EFAULT, hither_bind_thread(NULL, NULL));
  REFUSED(HITHER_EINVAL, hither_bind_thread("cpus:100000", NULL));
  REFUSED(HITHER_EINVAL, hither_bind_thread("allowed", "striped:2"));
  REFUSED(HITHER_EINVAL, hither_bind_thread("allowed", "no"));
  REFUSED(HITHER_EFAULT, hither_place_thread(NULL, NULL, 0));
  REFUSED(HITHER_EINVAL, hither_place_thread("allowed", "round-robin:cpu", 0));
  REFUSED(HITHER_EINVAL, hither_place_thread("machine:", NULL, 0));
  REFUSED(HITHER_EINVAL, hither_unbind_thread()); /* nothing of that was done */
  HOLDS(hither_bind_thread("allowed", NULL) == 0);
  HOLDS(hither_place_thread("allowed", NULL, UINT32_MAX) == 0);
  HOLDS(hither_place_thread("allowed", "float", 0) == 0);
  for (int i = 3; i < 64; i++) {
    HOLDS(hither_bind_thread("allowed", "local") == 0);
  }
  REFUSED(HITHER_EINVAL, hither_bind_thread("allowed", NULL));
  for (int i = 0; i < 64; i++) {
    HOLDS(hither_unbind_thread() == 0);
  }
  REFUSED(HITHER_EINVAL, hither_unbind_thread());
}

static void *waiter(void *argument) {
  int handle = *(int *)argument;
  NOTHING(HITHER_EBADF, hither_wait(handle, -1));
  return NULL;
}

static void closing_wakes(void) {
  pthread_t threads[2];
  int handle = hither_open("self");
  for (int i = 0; i < 2; i++) {
    HOLDS(pthread_create(&threads[i], NULL, waiter, &handle) == 0);
  }
  usleep(20000);
  HOLDS(hither_close(handle) == 0);
  for (int i = 0; i < 2; i++) {
    pthread_join(threads[i], NULL);
  }
}

static int child_ends_well(pid_t child) {
  int status = 1;
  return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

static void after_fork(int handle) {
  struct hither_request *req = hither_alloc_request(handle);
  HOLDS(req != NULL);
  fill(req);
  pid_t child = fork();
  if (child == 0) {
    char text[8];
    struct hither_config config;
    memset(&config, 0, sizeof config);
    line_failed = 0;
    REFUSED(HITHER_EFORK, hither_open(NULL));
    REFUSED(HITHER_EFORK, hither_open_config(&config, sizeof config));
    NOTHING(HITHER_EFORK, hither_alloc_request(handle));
    REFUSED(HITHER_EFORK, hither_submit_request(req));
    REFUSED(HITHER_EFORK, hither_cancel(req));
    REFUSED(HITHER_EFORK, hither_free_request(req));
    NOTHING(HITHER_EFORK, hither_retrieve_completed());
    NOTHING(HITHER_EFORK, hither_retrieve(handle));
    NOTHING(HITHER_EFORK, hither_wait(handle, -1));
    REFUSED(HITHER_EFORK, hither_describe(handle, text, sizeof text));
    NOTHING(HITHER_EFORK, hither_backend_name(handle, 0));
    REFUSED(HITHER_EFORK, hither_describe_set("machine", text, sizeof text));
    NOTHING(HITHER_EFORK, hither_alloc(4096, "machine", NULL, 0));
    REFUSED(HITHER_EFORK, hither_free(from));
    REFUSED(HITHER_EFORK, hither_bind_range(from, 4096, "machine", NULL, 0));
    REFUSED(HITHER_EFORK, hither_bind_thread("machine", NULL));
    REFUSED(HITHER_EFORK, hither_place_thread("machine", NULL, 0));
    REFUSED(HITHER_EFORK, hither_unbind_thread());
    REFUSED(HITHER_EFORK, hither_where(from, 4096, NULL, 0, NULL));
    REFUSED(HITHER_EFORK, hither_close(handle));
    REFUSED(HITHER_EFORK, hither_close_how(handle, HITHER_ABANDON));
    HOLDS(strcmp(hither_strerror(HITHER_EFORK), hither_strerror(1)) != 0);
    _exit(line_failed != 0);
  }
  HOLDS(child_ends_well(child));
  /* The parent goes on. */
  HOLDS(hither_submit_request(req) == 0 && hither_wait(handle, 20000) == req);
  HOLDS(req->status == HITHER_DONE && hither_free_request(req) == 0);
}

/* With any argument no limit is set: under valgrind the system call is its own. */
int main(int argument_count, char **arguments) {
  (void)arguments;
  pid_t child = fork();
  if (child == 0) { /* before the first hither_open(): a process like any other */
    works();
    exit(line_failed != 0);
  }
  HOLDS(child_ends_well(child));
  NOTHING(HITHER_OK, hither_retrieve_completed());
  int handle = hither_open(NULL);
  HOLDS(handle >= 0);
  opening();
  handles(handle);
  requests(handle);
  describing_sets();
  allocating();
  ranges();
  binding();
  in_flight();
  closing_wakes();
  after_fork(handle);
  works();
  HOLDS(strcmp(hither_strerror(HITHER_OK), "success") == 0);
  HOLDS(strcmp(hither_strerror(INT_MIN), hither_strerror(77)) == 0);
  HOLDS(strcmp(hither_reason_name(UINT32_MAX), "unknown") == 0);
  HOLDS(strcmp(hither_reason_name(HITHER_REFUSED_PINNED), "pinned") == 0);
  HOLDS(hither_close(handle) == 0);
  if (argument_count == 1) {
    struct rlimit none = {3, 3};
    HOLDS(setrlimit(RLIMIT_NOFILE, &none) == 0);
    REFUSED(HITHER_ENOMEM, hither_open(NULL));
  }
  return line_failed != 0;
}
