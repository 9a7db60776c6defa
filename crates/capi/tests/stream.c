/* Streams: every way of them, every wrong argument that C can pass, calls from within, and after
   fork(). */
#include <hither.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int failed;

#define REFUSED(code, call) refused(__LINE__, #call, code, (call))
#define HOLDS(condition) refused(__LINE__, #condition, 1, !!(condition))

static void refused(int line, const char *call, int wanted, int found) {
  if (found != wanted || (wanted < 0 && strlen(hither_last_error()) < 10)) {
    fprintf(stderr, "stream.c:%d: %s: %d instead of %d: %s\n", line, call, found, wanted,
            hither_last_error());
    failed = 1;
  }
}

enum { ELEMENTS = 100000 };

/* Three bytes: no type of C has this size. */
struct three {
  unsigned char bytes[3];
};

static struct three in[2][ELEMENTS];
static int32_t out[ELEMENTS], before[ELEMENTS];
static char fast[1 << 20];

static struct hither_stream_config usual(void) {
  struct hither_stream_config config;
  memset(&config, 0, sizeof config);
  config.block = 1000;
  config.inputs = 2;
  config.input_bytes = sizeof(struct three);
  config.outputs = 1;
  config.output_bytes = sizeof(int32_t);
  config.adapt = HITHER_STREAM_ALWAYS;
  return config;
}

static int sum(const struct three *one) {
  return one->bytes[0] + one->bytes[1] + one->bytes[2];
}

/* With `context` also what was there. */
static void add(const struct hither_stream_part *part, void *context) {
  const struct three *const *from = (const struct three *const *)part->inputs;
  int32_t *to = part->outputs[0];
  for (uint64_t i = 0; i < part->length; i++) {
    to[i] = sum(&from[0][i]) + 2 * sum(&from[1][i]) + (context ? to[i] : 0);
  }
  usleep(50); /* so that copies overtake */
}

static void nothing(const struct hither_stream_part *part, void *context) {
  (void)part;
  (*(int *)context)++;
}

static const void *inputs[2] = {in[0], in[1]};
static void *outputs[1] = {out};

static int run(int stream, struct hither_stream_report *report) {
  return hither_stream_run(stream, inputs, outputs, ELEMENTS, add, NULL, report);
}

static void every_way(int mover) {
  for (unsigned way = 0; way < 2 * 3 * 3 * 3; way++) {
    struct hither_stream_config config = usual();
    config.threads = way % 3;
    config.results = way / 3 % 3;
    config.adapt = way / 9 % 3;
    config.flags = way / 27 ? HITHER_STREAM_WHOLE : 0;
    int stream = hither_stream_create(mover, &config, sizeof config);
    HOLDS(stream > 0);
    int reads = config.results != HITHER_STREAM_FAST;
    struct hither_stream_report report;
    uint64_t fast_blocks = 0;
    for (int round = 0; round < 3; round++) {
      memcpy(before, out, sizeof out);
      REFUSED(0, hither_stream_run(stream, inputs, outputs, ELEMENTS, add, reads ? &reads : NULL,
                                   &report));
      int right = 0;
      for (int i = 0; i < ELEMENTS; i++) {
        right += out[i] == sum(&in[0][i]) + 2 * sum(&in[1][i]) + (reads ? before[i] : 0);
      }
      REFUSED(ELEMENTS, right);
      HOLDS(report.blocks == 100 && report.fast_blocks <= 100 && report.buffers == 8);
      fast_blocks += report.fast_blocks;
    }
    HOLDS(config.adapt != HITHER_STREAM_ALWAYS || (fast_blocks > 0 && report.copied_bytes > 0));
    HOLDS(config.adapt != HITHER_STREAM_ALWAYS || report.decision == HITHER_STREAM_THROUGH);
    HOLDS(config.adapt != HITHER_STREAM_NEVER || fast_blocks + report.copied_bytes == 0);
    /* No completion is the program's. */
    HOLDS(hither_retrieve(mover) == NULL && hither_last_code() == 0);
    REFUSED(0, hither_stream_destroy(stream));
  }
}

static void creating(int mover) {
  struct {
    struct hither_stream_config known;
    char more[8];
  } newer;
  memset(&newer, 0, sizeof newer);
  newer.known = usual();
  const struct hither_stream_config *known = &newer.known;
  REFUSED(HITHER_EFAULT, hither_stream_create(mover, NULL, sizeof *known));
  REFUSED(HITHER_EINVAL, hither_stream_create(mover, known, sizeof *known - 1));
  REFUSED(HITHER_EINVAL, hither_stream_create(mover, known, SIZE_MAX));
  REFUSED(HITHER_EBADF, hither_stream_create(-1, known, sizeof *known));
  REFUSED(HITHER_EBADF, hither_stream_create(mover + 1000, known, sizeof *known));
  int stream = hither_stream_create(mover, known, sizeof newer);
  HOLDS(stream > 0);
  REFUSED(0, hither_stream_destroy(stream));
  REFUSED(HITHER_EBADF, hither_stream_destroy(stream));
  REFUSED(HITHER_EBADF, run(stream, NULL));
  newer.more[7] = 1;
  REFUSED(HITHER_E2BIG, hither_stream_create(mover, known, sizeof newer));
#define WITH(field, value, code)                                        \
  do {                                                                  \
    struct hither_stream_config config = usual();                       \
    config.field = value;                                               \
    REFUSED(code, hither_stream_create(mover, &config, sizeof config)); \
  } while (0)
  WITH(block, SIZE_MAX, HITHER_EINVAL);
  WITH(block, SIZE_MAX / 64, HITHER_EINVAL);
  WITH(block, (size_t)1 << 50, HITHER_EINVAL);
  WITH(cache_bytes, SIZE_MAX, HITHER_EINVAL);
  WITH(input_bytes, 0, HITHER_EINVAL);
  WITH(output_bytes, 0, HITHER_EINVAL);
  WITH(input_bytes, SIZE_MAX, HITHER_EINVAL);
  WITH(fast_memory, fast, HITHER_EINVAL);
  WITH(fast_bytes, SIZE_MAX, HITHER_EINVAL);
  WITH(fast_node, -1, HITHER_EFAULT);
  WITH(fast_node, -2, HITHER_EINVAL);
  WITH(fast_node, INT32_MIN, HITHER_EINVAL);
  WITH(fast_node, 1023, HITHER_EINVAL);
  WITH(fast_node, INT32_MAX, HITHER_EINVAL);
  WITH(inputs, 65, HITHER_EINVAL);
  WITH(outputs, UINT32_MAX, HITHER_EINVAL);
  WITH(buffers, UINT32_MAX, HITHER_EINVAL);
  WITH(threads, 1025, HITHER_EINVAL);
  WITH(results, 3, HITHER_EINVAL);
  WITH(adapt, 3, HITHER_EINVAL);
  WITH(flags, 4, HITHER_EINVAL);
  struct hither_stream_config none = usual();
  none.inputs = none.outputs = 0;
  REFUSED(HITHER_EINVAL, hither_stream_create(mover, &none, sizeof none));
  none.outputs = 1; /* in place: nothing goes through fast memory */
  REFUSED(HITHER_EINVAL, hither_stream_create(mover, &none, sizeof none));
  /* A program's own fast memory. */
  struct hither_stream_config own = usual();
  own.fast_node = -1;
  own.fast_memory = fast;
  REFUSED(HITHER_EINVAL, hither_stream_create(mover, &own, sizeof own));
  own.fast_bytes = SIZE_MAX;
  REFUSED(HITHER_EINVAL, hither_stream_create(mover, &own, sizeof own));
  own.fast_bytes = 1000;
  REFUSED(HITHER_EINVAL, hither_stream_create(mover, &own, sizeof own));
  own.fast_bytes = sizeof fast;
  stream = hither_stream_create(mover, &own, sizeof own);
  HOLDS(stream > 0);
  struct hither_stream_report report;
  REFUSED(0, run(stream, &report));
  HOLDS(out[7] == sum(&in[0][7]) + 2 * sum(&in[1][7]));
  outputs[0] = fast + 4096;
  REFUSED(HITHER_EINVAL, run(stream, NULL)); /* an output in fast memory */
  outputs[0] = out;
  REFUSED(0, hither_stream_destroy(stream));
  /* Defaults: blocks of 256 KiB, 8 buffers. */
  struct hither_stream_config defaults;
  memset(&defaults, 0, sizeof defaults);
  defaults.inputs = 1;
  defaults.input_bytes = 8;
  stream = hither_stream_create(mover, &defaults, sizeof defaults);
  HOLDS(stream > 0);
  int calls = 0;
  REFUSED(0, hither_stream_run(stream, inputs, NULL, 32768, nothing, &calls, &report));
  HOLDS(report.blocks == 1 && report.buffers == 8 && calls == 1);
  REFUSED(0, hither_stream_destroy(stream));
}

static void running(int mover) {
  struct hither_stream_config config = usual();
  int stream = hither_stream_create(mover, &config, sizeof config), calls = 0;
  HOLDS(stream > 0);
  const int bad[] = {-1, 0, INT_MIN, INT_MAX};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    REFUSED(HITHER_EBADF, run(bad[i], NULL));
    REFUSED(HITHER_EBADF, hither_stream_destroy(bad[i]));
  }
#define RUN(code, from, to, length, compute) \
  REFUSED(code, hither_stream_run(stream, from, to, length, compute, &calls, NULL))
  RUN(HITHER_EFAULT, inputs, outputs, 10, NULL);
  RUN(HITHER_EFAULT, NULL, outputs, 10, nothing);
  RUN(HITHER_EFAULT, inputs, NULL, 10, nothing);
  const void *missing[] = {in[0], NULL}, *far[] = {in[0], (const void *)(UINTPTR_MAX - 3)};
  void *nowhere[] = {NULL}, *inside[] = {in[1] + 5};
  RUN(HITHER_EFAULT, missing, outputs, 10, nothing);
  HOLDS(strstr(hither_last_error(), "inputs[1]") != NULL);
  RUN(HITHER_EFAULT, inputs, nowhere, 10, nothing);
  RUN(HITHER_EINVAL, far, outputs, 10, nothing);
  RUN(HITHER_EINVAL, inputs, outputs, SIZE_MAX, nothing);
  RUN(HITHER_EINVAL, inputs, outputs, SIZE_MAX / 3, nothing);
  RUN(HITHER_EINVAL, inputs, inside, 10, nothing);
  HOLDS(strstr(hither_last_error(), "output 0 overlaps input 1") != NULL);
  RUN(0, missing, nowhere, 0, nothing);
  HOLDS(calls == 0);
  RUN(0, inputs, outputs, 1, nothing);
  HOLDS(calls == 1);
  REFUSED(0, hither_stream_destroy(stream));
}

struct both {
  int mover, stream, calls;
};

/* Calls of a stream from within it are refused, and none of them waits for ever. */
static void from_within(const struct hither_stream_part *part, void *context) {
  struct both *both = context;
  both->calls++;
  HOLDS(part->thread == 0 && part->length == 1000 && part->first == 1000 * part->block);
  REFUSED(HITHER_EBUSY, run(both->stream, NULL));
  REFUSED(HITHER_EBUSY, hither_stream_destroy(both->stream));
  REFUSED(HITHER_EBUSY, hither_close(both->mover));
  struct hither_stream_config config = usual();
  config.inputs = 0;
  config.block = 10;
  config.results = HITHER_STREAM_FAST;
  int other = hither_stream_create(both->mover, &config, sizeof config), calls = 0;
  int32_t numbers[100];
  void *others[] = {numbers};
  REFUSED(0, hither_stream_run(other, NULL, others, 100, nothing, &calls, NULL));
  HOLDS(calls == 10);
  REFUSED(0, hither_stream_destroy(other));
}

static void within(int mover) {
  struct hither_stream_config config = usual();
  struct both both = {mover, hither_stream_create(mover, &config, sizeof config), 0};
  HOLDS(both.stream > 0);
  REFUSED(0, hither_stream_run(both.stream, inputs, outputs, 20000, from_within, &both, NULL));
  HOLDS(both.calls == 20);
  REFUSED(HITHER_EBUSY, hither_close(mover)); /* it has a stream */
  REFUSED(HITHER_EBUSY, hither_close_how(mover, HITHER_ABANDON));
  REFUSED(0, hither_stream_destroy(both.stream));
}

static int shared, started, busy;

static void *again(void *unused) {
  (void)unused;
  while (!__atomic_load_n(&started, __ATOMIC_ACQUIRE)) {
    usleep(100);
  }
  REFUSED(HITHER_EBUSY, run(shared, NULL));
  REFUSED(HITHER_EBUSY, hither_stream_destroy(shared));
  __atomic_store_n(&busy, 1, __ATOMIC_RELEASE);
  return NULL;
}

static void waits(const struct hither_stream_part *part, void *context) {
  (void)part;
  (void)context;
  __atomic_store_n(&started, 1, __ATOMIC_RELEASE);
  while (!__atomic_load_n(&busy, __ATOMIC_ACQUIRE)) {
    usleep(100);
  }
}

static void one_at_a_time(int mover) {
  struct hither_stream_config config = usual();
  shared = hither_stream_create(mover, &config, sizeof config);
  pthread_t thread;
  HOLDS(shared > 0 && pthread_create(&thread, NULL, again, NULL) == 0);
  REFUSED(0, hither_stream_run(shared, inputs, outputs, ELEMENTS, waits, NULL, NULL));
  pthread_join(thread, NULL);
  REFUSED(0, hither_stream_destroy(shared));
}

/* The stream's completions are its own, and the program's are the program's. */
static void beside_requests(int mover) {
  struct hither_request *req = hither_alloc_request(mover);
  HOLDS(req != NULL);
  req->kind = HITHER_REPLICATE;
  req->src_base = in[0];
  req->dst_base = before;
  req->length = 1000;
  req->tag = 77;
  REFUSED(0, hither_submit_request(req));
  struct hither_stream_config config = usual();
  int stream = hither_stream_create(mover, &config, sizeof config);
  REFUSED(0, run(stream, NULL));
  REFUSED(0, hither_stream_destroy(stream));
  HOLDS(hither_wait(mover, 20000) == req && req->tag == 77 && req->status == HITHER_DONE);
  HOLDS(hither_retrieve(mover) == NULL && hither_free_request(req) == 0);
  /* A mover whose requests are too few for one block. */
  struct hither_config few;
  memset(&few, 0, sizeof few);
  few.capacity = 1;
  int small = hither_open_config(&few, sizeof few);
  REFUSED(HITHER_EINVAL, hither_stream_create(small, &config, sizeof config));
  HOLDS(strstr(hither_last_error(), "capacity") != NULL);
  REFUSED(0, hither_close(small));
  REFUSED(HITHER_EBADF, hither_stream_create(small, &config, sizeof config));
}

static void after_fork(int mover) {
  struct hither_stream_config config = usual();
  int stream = hither_stream_create(mover, &config, sizeof config), status = 1;
  HOLDS(stream > 0);
  pid_t child = fork();
  if (child == 0) {
    failed = 0;
    REFUSED(HITHER_EFORK, hither_stream_create(mover, &config, sizeof config));
    REFUSED(HITHER_EFORK, run(stream, NULL));
    REFUSED(HITHER_EFORK, hither_stream_destroy(stream));
    _exit(failed);
  }
  HOLDS(child > 0 && waitpid(child, &status, 0) == child && status == 0);
  REFUSED(0, run(stream, NULL));
  REFUSED(0, hither_stream_destroy(stream));
}

int main(void) {
  for (int i = 0; i < ELEMENTS; i++) {
    for (int byte = 0; byte < 3; byte++) {
      in[0][i].bytes[byte] = (unsigned char)(i * 7 + byte);
      in[1][i].bytes[byte] = (unsigned char)(i >> 8 * byte);
    }
  }
  struct hither_config config;
  memset(&config, 0, sizeof config);
  config.batch_requests = 1;
  int mover = hither_open_config(&config, sizeof config);
  HOLDS(mover >= 0);
  creating(mover);
  running(mover);
  within(mover);
  one_at_a_time(mover);
  beside_requests(mover);
  after_fork(mover);
  every_way(mover);
  REFUSED(0, hither_close(mover));
  return failed;
}
