/*
 * Triad over arrays in slow memory, by way of fast memory: a = b + 3 c, computed from buffers that a
 * mover fills ahead (memif, section 6.6). Every element is looked at afterwards.
 *
 *   cc stream.c $(pkg-config --cflags --libs hither) -o stream && ./stream [measure|always|never] [NODE]
 *
 * "measure", what nothing means, uses fast memory where that is faster, "always" in any case. NODE is
 * where fast memory is; on a machine with one node it is 0, and there is nothing to gain.
 */
#include <hither.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ELEMENTS = 1 << 20, BLOCK = 8 << 10, ROUNDS = 5 };

static double a[ELEMENTS], b[ELEMENTS], c[ELEMENTS];

static int fail(const char *what) {
  fprintf(stderr, "stream: %s: %s\n", what, hither_last_error());
  return 1;
}

/* Threads of the team call this, each for parts of its own. */
static void triad(const struct hither_stream_part *part, void *context) {
  const double factor = *(const double *)context;
  const double *from = (const double *)part->inputs[0], *times = (const double *)part->inputs[1];
  double *to = (double *)part->outputs[0];
  for (uint64_t i = 0; i < part->length; i++) {
    to[i] = from[i] + factor * times[i];
  }
}

static uint32_t adapt(const char *word) {
  if (!strcmp(word, "always")) {
    return HITHER_STREAM_ALWAYS;
  }
  return strcmp(word, "never") ? HITHER_STREAM_MEASURE : HITHER_STREAM_NEVER;
}

int main(int argument_count, char **arguments) {
  /* Each block is ready as soon as it is there: requests are taken one by one. */
  struct hither_config mover_config;
  memset(&mover_config, 0, sizeof mover_config);
  mover_config.batch_requests = 1;
  int mover = hither_open_config(&mover_config, sizeof mover_config);
  if (mover < 0) {
    return fail("hither_open_config");
  }
  struct hither_stream_config config;
  memset(&config, 0, sizeof config);
  config.block = BLOCK;
  config.inputs = 2;
  config.input_bytes = sizeof *b;
  config.outputs = 1;
  config.output_bytes = sizeof *a;
  config.threads = 2;
  config.adapt = adapt(argument_count > 1 ? arguments[1] : "measure");
  config.fast_node = argument_count > 2 ? atoi(arguments[2]) : 0;
  int stream = hither_stream_create(mover, &config, sizeof config);
  if (stream < 0) {
    return fail("hither_stream_create");
  }
  for (int i = 0; i < ELEMENTS; i++) {
    b[i] = i;
    c[i] = 2 * i + 1;
  }
  const void *inputs[] = {b, c};
  void *outputs[] = {a};
  uint64_t blocks = 0, fast_blocks = 0, right = 0;
  struct hither_stream_report report;
  for (int round = 1; round <= ROUNDS; round++) {
    double factor = 3 * round;
    if (hither_stream_run(stream, inputs, outputs, ELEMENTS, triad, &factor, &report) != HITHER_OK) {
      return fail("hither_stream_run");
    }
    for (int i = 0; i < ELEMENTS; i++) {
      right += a[i] == b[i] + factor * c[i];
    }
    blocks += report.blocks;
    fast_blocks += report.fast_blocks;
    printf("round %d: %" PRIu64 " of %" PRIu64 " blocks from fast memory, %" PRIu64
           " bytes copied, %" PRIu64 " us\n",
           round, report.fast_blocks, report.blocks, report.copied_bytes, report.elapsed_ns / 1000);
  }
  const char *decisions[] = {"not known yet", "slow memory alone", "through fast memory"};
  printf("%" PRIu32 " buffers; which way is faster: %s\n", report.buffers,
         decisions[report.decision]);
  printf("%" PRIu64 " of %" PRIu64 " blocks were computed from fast memory\n", fast_blocks, blocks);
  printf("%" PRIu64 " of %d elements are right\n", right, ROUNDS * ELEMENTS);
  if (hither_stream_destroy(stream) != HITHER_OK || hither_close(mover) != HITHER_OK) {
    return fail("closing");
  }
  return right == (uint64_t)ROUNDS * ELEMENTS ? 0 : 1;
}
