/*
 * Allocates in a resource set, runs threads on its CPUs, and looks where the pages went.
 *
 *   cc place.c -pthread $(pkg-config --cflags --libs hither) -o place && ./place 'allowed' striped
 */
#include <hither.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { THREADS = 4, PART = 1 << 20, MOST_NODES = 1024 };

static const char *set = "allowed", *memory;
static char *data;

static int fail(const char *what) {
  fprintf(stderr, "place: %s: %s\n", what, hither_last_error());
  return 1;
}

/* Each thread on a CPU of the set, in the order that "fill" says, writes to its part. */
static void *work(void *argument) {
  unsigned index = *(unsigned *)argument;
  if (hither_place_thread(set, "fill", index) != HITHER_OK) {
    fail("hither_place_thread");
    return NULL;
  }
  memset(data + (size_t)index * PART, 1, PART);
  hither_unbind_thread();
  return argument;
}

int main(int argument_count, char **arguments) {
  if (argument_count > 1) {
    set = arguments[1];
  }
  if (argument_count > 2) {
    memory = arguments[2]; /* NULL: "bind" where the set has memory */
  }
  char text[1024];
  if (hither_describe_set(set, text, sizeof text) < 0) {
    return fail("hither_describe_set");
  }
  printf("%s: %s", set, text);
  data = (char *)hither_alloc((size_t)THREADS * PART, set, memory, HITHER_SMALL);
  if (!data) {
    return fail("hither_alloc");
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
  uint64_t nodes[MOST_NODES];
  struct hither_residency found;
  int count = hither_where(data, (size_t)THREADS * PART, nodes, MOST_NODES, &found);
  if (count < 0) {
    return fail("hither_where");
  }
  for (int node = 0; node < count; node++) {
    if (nodes[node]) {
      printf("node%d: %" PRIu64 " pages\n", node, nodes[node]);
    }
  }
  printf("%" PRIu64 " of %" PRIu64 " pages are in memory, %" PRIu64 " astray\n",
         found.pages - found.absent, found.pages, found.astray);
  return hither_free(data) == HITHER_OK && good ? 0 : 1;
}
