/*
 * A table that all threads read and one writes: each thread reads the copy on its own node.
 *
 *   cc replicated.c -pthread $(pkg-config --cflags --libs hither) -o replicated && ./replicated
 *
 * With an argument, so many copies on the first node: to try it on a machine with one.
 */
#include <hither.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 4, ENTRIES = 1 << 17, EPOCHS = 200 };

static int array;
static unsigned places;

static int fail(const char *what) {
  fprintf(stderr, "replicated: %s: %s\n", what, hither_last_error());
  return 1;
}

/* Every entry of an epoch has its number. */
static void *read_all(void *argument) {
  unsigned index = *(unsigned *)argument;
  int reader = hither_replicated_reader(array, places ? (int)(index % places) : -1);
  uint64_t last = 0;
  while (reader >= 0 && last <= EPOCHS) {
    struct hither_view view;
    if (hither_replicated_read(reader, &view) != HITHER_OK) {
      fail("hither_replicated_read");
      return NULL;
    }
    const uint64_t *entries = (const uint64_t *)view.data;
    for (size_t entry = 0; entry < ENTRIES; entry += 511) {
      if (entries[entry] != view.epoch || view.epoch < last) {
        fprintf(stderr, "entry %zu of epoch %" PRIu64 " is %" PRIu64 "\n", entry, view.epoch,
                entries[entry]);
        return NULL;
      }
    }
    last = view.epoch;
    hither_replicated_done(reader);
  }
  if (reader < 0 || hither_replicated_close_reader(reader) != HITHER_OK) {
    fail("hither_replicated_reader");
    return NULL;
  }
  return argument;
}

/* The next epoch is prepared where nobody sees it. */
static int publish(uint64_t epoch) {
  void *memory;
  if (hither_replicated_prepare(array, 0, ENTRIES * sizeof(uint64_t), -1, &memory) != HITHER_OK) {
    return fail("hither_replicated_prepare");
  }
  for (size_t entry = 0; entry < ENTRIES; entry++) {
    ((uint64_t *)memory)[entry] = epoch;
  }
  return hither_replicated_publish(array) == HITHER_OK ? 0 : fail("hither_replicated_publish");
}

int main(int argument_count, char **arguments) {
  struct hither_replicated_config config;
  memset(&config, 0, sizeof config);
  config.keep_ms = 2;
  if (argument_count > 1) {
    places = (unsigned)atoi(arguments[1]);
    config.copies = places;
  }
  array = hither_replicated_create(ENTRIES * sizeof(uint64_t), &config, sizeof config);
  if (array < 0) {
    return fail("hither_replicated_create");
  }
  /* Zeros are epoch 1; readers want numbers. */
  if (publish(2)) {
    return 1;
  }
  pthread_t threads[THREADS];
  unsigned numbers[THREADS];
  for (unsigned index = 0; index < THREADS; index++) {
    numbers[index] = index;
    if (pthread_create(&threads[index], NULL, read_all, &numbers[index])) {
      return 1;
    }
  }
  for (uint64_t epoch = 3; epoch <= EPOCHS + 1; epoch++) {
    if (publish(epoch)) {
      return 1;
    }
  }
  unsigned good = 0;
  for (unsigned index = 0; index < THREADS; index++) {
    void *result;
    pthread_join(threads[index], &result);
    good += result != NULL;
  }
  if (hither_replicated_refresh(array, 20000) != HITHER_OK) {
    return fail("hither_replicated_refresh");
  }
  char text[2048];
  if (hither_replicated_report(array, text, sizeof text) < 0) {
    return fail("hither_replicated_report");
  }
  printf("%s%u of %d threads saw whole epochs in order\n", text, good, THREADS);
  return hither_replicated_destroy(array) == HITHER_OK && good == THREADS ? 0 : 1;
}
