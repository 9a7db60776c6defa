/*
 * A hash table in two halves, each in a cache of its own: threads do not fetch the half that they
 * need, they have it looked up where it is. Each region has one thread, so that no half needs a lock.
 *
 *   cc regions.c -pthread $(pkg-config --cflags --libs hither) -o regions && ./regions domain:0 domain:1
 */
#include <hither.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>

enum { THREADS = 4, HALVES = 2, ENTRIES = 1 << 16, BATCHES = 500, BATCH = 64 };

static int regions[HALVES];
static uint64_t counts[HALVES][ENTRIES];

struct batch {
  uint64_t keys[BATCH];
  unsigned half, number;
  uint64_t found;
};

static int fail(const char *what) {
  fprintf(stderr, "regions: %s: %s\n", what, hither_last_error());
  return 1;
}

/* Runs on the region's CPUs. */
static void *count(void *argument) {
  struct batch *batch = (struct batch *)argument;
  for (unsigned i = 0; i < batch->number; i++) {
    batch->found += ++counts[batch->half][batch->keys[i] % ENTRIES] > 1;
  }
  return batch;
}

/* Keys are sorted by half first, so that a visit is worth its way. */
static void *work(void *argument) {
  uint64_t key = *(unsigned *)argument + 1;
  for (unsigned turn = 0; turn < BATCHES; turn++) {
    struct batch batches[HALVES] = {{{0}, 0, 0, 0}, {{0}, 1, 0, 0}};
    for (unsigned i = 0; i < BATCH; i++) {
      key = key * 6364136223846793005u + 1442695040888963407u;
      struct batch *batch = &batches[key >> 63];
      batch->keys[batch->number++] = key >> 32;
    }
    for (unsigned half = 0; half < HALVES; half++) {
      void *result = NULL;
      if (hither_region_run(regions[half], count, &batches[half], &result) != HITHER_OK ||
          result != &batches[half]) {
        fail("hither_region_run");
        return NULL;
      }
    }
  }
  return argument;
}

int main(int argument_count, char **arguments) {
  for (int half = 0; half < HALVES; half++) {
    const char *set = argument_count > half + 1 ? arguments[half + 1] : "domain:0";
    regions[half] = hither_region_create(set, 1);
    if (regions[half] < 0) {
      return fail("hither_region_create");
    }
  }
  pthread_t threads[THREADS];
  unsigned numbers[THREADS];
  for (unsigned i = 0; i < THREADS; i++) {
    numbers[i] = i;
    if (pthread_create(&threads[i], NULL, work, &numbers[i]) != 0) {
      return 1;
    }
  }
  int good = 1;
  for (unsigned i = 0; i < THREADS; i++) {
    void *result = NULL;
    pthread_join(threads[i], &result);
    good = good && result != NULL;
  }
  uint64_t all = 0;
  for (unsigned half = 0; half < HALVES; half++) {
    for (unsigned entry = 0; entry < ENTRIES; entry++) {
      all += counts[half][entry];
    }
    if (hither_region_destroy(regions[half]) != HITHER_OK) {
      return fail("hither_region_destroy");
    }
  }
  uint64_t wanted = (uint64_t)THREADS * BATCHES * BATCH;
  printf("%" PRIu64 " of %" PRIu64 " keys counted\n", all, wanted);
  return good && all == wanted ? 0 : 1;
}
