/*
 * A program that places its own data by what it reads of itself, as the ccNUMA paper does with its monitor "Opium" (Brock
 * et al. 2001, section 2): each node's thread works on a slice that lies on another node. The program watches what its
 * slices cost across nodes, waits until that is much, reads which node asks for which slice, moves each slice there, and
 * looks whether all pages arrived and whether the counts fell.
 *
 *   cc monitor.c -pthread $(pkg-config --cflags --libs hither) -o monitor && ./monitor [samples]
 *
 * Counts come from the laboratory's device where the program is root there, else from samples of the PMU.
 */
#include <hither.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE = 4096, SLICE = 4 << 20, DOUBLES = SLICE / 8, ROUNDS = 6, MOST_NODES = 8, WAIT_MS = 60000 };

struct slice {
  int node; /* whose thread works on it */
  double *data;
};

static struct slice slices[MOST_NODES];
static int slice_count;
static pthread_barrier_t begin, end;
static volatile int is_over;

static int fail(const char *what) {
  fprintf(stderr, "monitor: %s: %s\n", what, hither_last_error());
  exit(1);
}

/* Works when it is told to: twice two operations for each element. */
static void *work(void *argument) {
  struct slice *slice = (struct slice *)argument;
  char cpus[32];
  snprintf(cpus, sizeof cpus, "node:%d", slice->node);
  if (hither_bind_thread(cpus, "float") != HITHER_OK) {
    fail("hither_bind_thread");
  }
  for (;;) {
    pthread_barrier_wait(&begin);
    if (is_over) {
      return NULL;
    }
    double sum = 0;
    for (int round = 0; round < ROUNDS; round++) {
      for (int i = 0; i < DOUBLES; i++) {
        sum += slice->data[i];
        slice->data[i] = slice->data[i] * 0.5 + 1;
      }
    }
    if (sum < 0) {
      puts("never");
    }
    pthread_barrier_wait(&end);
  }
}

/* All threads work once, while the monitor counts; tells thresholds as they are reached. Returns how many were. */
static int watch(int monitor, int must_reach) {
  if (hither_monitor_start(monitor) != HITHER_OK) {
    fail("hither_monitor_start");
  }
  pthread_barrier_wait(&begin);
  int reached_count = 0;
  struct hither_reached reached;
  /* The first comes while the threads work; what else was reached is read afterwards. */
  if (must_reach) {
    int told = hither_monitor_wait(monitor, WAIT_MS, &reached);
    if (told < 0) {
      fail("hither_monitor_wait");
    }
    reached_count += told;
    if (told) {
      printf("told while they work: %s %d, last asked by node%d\n", reached.area < 0 ? "sum" : "area",
             reached.area < 0 ? reached.sum : reached.area, reached.node);
    }
  }
  pthread_barrier_wait(&end);
  while (hither_monitor_wait(monitor, 0, &reached) == 1) {
    reached_count++;
  }
  if (hither_monitor_stop(monitor) != HITHER_OK) {
    fail("hither_monitor_stop");
  }
  return reached_count;
}

static uint64_t read_sum(int monitor, int sum) {
  uint64_t counts[MOST_NODES], all = 0;
  if (hither_monitor_read_sum(monitor, sum, counts, MOST_NODES) != HITHER_OK) {
    fail("hither_monitor_read_sum");
  }
  for (int node = 0; node < MOST_NODES; node++) {
    all += counts[node];
  }
  return all;
}

/* The node that asked most for an area; -1 where none did. */
static int asker(int monitor, int area) {
  static uint64_t counts[SLICE / PAGE][MOST_NODES];
  uint64_t all[MOST_NODES] = {0}, missed = 0;
  int grains = hither_monitor_read(monitor, area, counts[0], SLICE / PAGE, MOST_NODES, &missed);
  if (grains < 0) {
    fail("hither_monitor_read");
  }
  int most = -1;
  for (int node = 0; node < MOST_NODES; node++) {
    for (int grain = 0; grain < grains; grain++) {
      all[node] += counts[grain][node];
    }
    if (all[node] > (most < 0 ? 0 : all[most])) {
      most = node;
    }
  }
  if (most >= 0) {
    printf("area %d: %d grains, %" PRIu64 " lines across nodes, most for node%d, %" PRIu64 " pages missed\n", area, grains,
           all[most], most, missed);
  }
  return most;
}

/* Pages of a slice on a node, by move_pages(2). */
static uint64_t pages_on(const struct slice *slice, int node) {
  uint64_t nodes[MOST_NODES] = {0};
  if (hither_where(slice->data, SLICE, nodes, MOST_NODES, NULL) < 0) {
    fail("hither_where");
  }
  return nodes[node];
}

static double packets(int monitor, const char *when) {
  struct hither_totals totals;
  int told = hither_monitor_totals(monitor, &totals, sizeof totals);
  if (told < 0) {
    fail("hither_monitor_totals");
  }
  if (told == 0) {
    printf("%s: samples tell of no packets\n", when);
    return 0;
  }
  uint64_t all = totals.short_packets + totals.line_packets;
  double each = all ? (double)totals.flops / (double)all : 0;
  printf("%s: %" PRIu64 " packets, %" PRIu64 " operations, %.3f operations a packet\n", when, all, totals.flops, each);
  return each;
}

int main(int argument_count, char **arguments) {
  uint32_t flags = argument_count > 1 && strcmp(arguments[1], "samples") == 0 ? HITHER_MONITOR_SAMPLES : 0;
  int monitor = hither_monitor_open(flags);
  if (monitor < 0) {
    fail("hither_monitor_open");
  }
  char text[1024];
  hither_monitor_describe(monitor, text, sizeof text);
  printf("%s\n", text);

  /* The nodes: those that pages striped over all lie on. */
  uint64_t nodes[MOST_NODES] = {0};
  char *all = (char *)hither_alloc((size_t)64 * PAGE, "allowed", "striped", HITHER_SMALL | HITHER_POPULATE);
  if (!all || hither_where(all, (size_t)64 * PAGE, nodes, MOST_NODES, NULL) < 0) {
    fail("hither_alloc");
  }
  hither_free(all);
  for (int node = 0; node < MOST_NODES; node++) {
    if (nodes[node]) {
      slices[slice_count++].node = node;
    }
  }
  if (slice_count < 2) {
    fprintf(stderr, "monitor: this machine has one node: nothing crosses between nodes\n");
    return 2;
  }

  /* Each slice on the next node: the mistake. */
  int areas[MOST_NODES];
  pthread_t threads[MOST_NODES];
  pthread_barrier_init(&begin, NULL, (unsigned)slice_count + 1);
  pthread_barrier_init(&end, NULL, (unsigned)slice_count + 1);
  for (int i = 0; i < slice_count; i++) {
    char wrong[32];
    snprintf(wrong, sizeof wrong, "mem:%d", slices[(i + 1) % slice_count].node);
    slices[i].data = (double *)hither_alloc(SLICE, wrong, "bind", HITHER_HUGE | HITHER_POPULATE);
    if (!slices[i].data) {
      fail("hither_alloc");
    }
    struct hither_area area;
    memset(&area, 0, sizeof area);
    area.start = slices[i].data;
    area.length = SLICE;
    area.types = HITHER_TYPE_FILLS;
    area.directions = HITHER_REMOTE;
    areas[i] = hither_monitor_add_area(monitor, &area, sizeof area);
    if (areas[i] < 0) {
      fail("hither_monitor_add_area");
    }
    if (pthread_create(&threads[i], NULL, work, &slices[i]) != 0) {
      return 1;
    }
  }
  /* Over all slices: what loads ask for, told of when an eighth of a round has crossed; and what stores ask for. */
  uint64_t eighth = (uint64_t)slice_count * SLICE / 64 / 8;
  const uint32_t loads = HITHER_TYPE_READ | HITHER_TYPE_PREFETCH, stores = HITHER_TYPE_WRITE | HITHER_TYPE_PREFETCH_WRITE;
  int reads = hither_monitor_add_sum(monitor, areas, (size_t)slice_count, loads, eighth);
  int writes = hither_monitor_add_sum(monitor, areas, (size_t)slice_count, stores, 0);
  if (reads < 0 || writes < 0) {
    fail("hither_monitor_add_sum");
  }

  int told = watch(monitor, 1);
  uint64_t before = read_sum(monitor, reads) + read_sum(monitor, writes);
  printf("before: %" PRIu64 " lines across nodes for loads, %" PRIu64 " for stores\n", read_sum(monitor, reads),
         read_sum(monitor, writes));
  double each_before = packets(monitor, "before");

  /* Each slice goes to the node that asked for it. */
  uint64_t arrived = 0;
  for (int i = 0; i < slice_count; i++) {
    int node = asker(monitor, areas[i]);
    char right[32];
    snprintf(right, sizeof right, "mem:%d", node);
    if (node < 0 || hither_bind_range(slices[i].data, SLICE, right, "bind", HITHER_MOVE) != HITHER_OK) {
      fail("hither_bind_range");
    }
    arrived += pages_on(&slices[i], slices[i].node);
  }
  uint64_t pages = (uint64_t)slice_count * SLICE / PAGE;
  printf("%" PRIu64 " of %" PRIu64 " pages are on the node that works on them\n", arrived, pages);

  int again = watch(monitor, 0);
  uint64_t after = read_sum(monitor, reads) + read_sum(monitor, writes);
  printf("after: %" PRIu64 " lines across nodes, %d thresholds\n", after, again);
  double each_after = packets(monitor, "after");

  is_over = 1;
  pthread_barrier_wait(&begin);
  for (int i = 0; i < slice_count; i++) {
    pthread_join(threads[i], NULL);
    hither_free(slices[i].data);
  }
  hither_monitor_close(monitor);
  int good = told > 0 && again == 0 && arrived == pages && after * 10 < before && each_after >= each_before;
  printf("%s\n", good ? "the program placed its own data" : "NOT as it should be");
  return good ? 0 : 1;
}
