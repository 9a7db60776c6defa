/*
 * The policies of the ccNUMA paper's resource sets (Brock et al. 2001, section 4): threads bound by "fill" or
 * "round-robin" over the nodes, memory of each on its own node ("local"), on another one ("remote") or in stripes over
 * all. Where every thread runs and where every page is, is looked up and compared with what the policies promise.
 *
 *   cc rsets.c -pthread $(pkg-config --cflags --libs hither) -o rsets && ./rsets 'allowed' 8
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <hither.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE = 4096, PAGES = 64, STRIDE = 2, MOST_THREADS = 256, MOST_NODES = 1024, MOST_TEXT = 1000 };

static const char *set = "allowed";
static unsigned thread_count = 4;

/* The set's nodes with memory, in order. */
static int nodes[MOST_NODES], node_count;

/* What is asked for, and what a thread found. */
struct task {
  const char *threads, *memory;
  unsigned index;
  int node;    /* of its CPU */
  int refused; /* memory was, with a sentence */
  unsigned wrong; /* pages that are not where the policy wants them */
  char reason[256];
};

static int fail(const char *what) {
  fprintf(stderr, "rsets: %s: %s\n", what, hither_last_error());
  return 1;
}

/* Node of a page that is in memory; -1 where it is not. */
static int node_of(const char *page) {
  struct hither_residency found;
  int highest = hither_where(page, PAGE, NULL, 0, &found);
  return highest > 0 && found.absent == 0 ? highest - 1 : -1;
}

/* Position among the set's nodes. */
static int position(int node) {
  for (int i = 0; i < node_count; i++) {
    if (nodes[i] == node) {
      return i;
    }
  }
  return -1;
}

static int is_right(const struct task *task, const char *data, int page) {
  int node = node_of(data + (size_t)page * PAGE);
  if (position(node) < 0) {
    return 0;
  }
  if (strcmp(task->memory, "local") == 0) {
    return node == task->node;
  }
  if (strcmp(task->memory, "remote") == 0) {
    return node != task->node;
  }
  /* Stripes of two pages: the second as the first, the next stripe on the next node. */
  int before = page == 0 ? -1 : node_of(data + (size_t)(page - 1) * PAGE);
  if (page == 0) {
    return 1;
  }
  return page % STRIDE != 0 ? node == before : position(node) == (position(before) + 1) % node_count;
}

static void *work(void *argument) {
  struct task *task = (struct task *)argument;
  unsigned cpu = 0, node = 0;
  if (hither_place_thread(set, task->threads, task->index) != HITHER_OK || getcpu(&cpu, &node) != 0) {
    fail("hither_place_thread");
    task->node = -1;
    return NULL;
  }
  task->node = (int)node;
  /* "remote" is away from the CPUs of its set: this thread's, beside the memory of all. */
  char own[MOST_TEXT];
  int length = snprintf(own, sizeof own, "cpus:%u + mem:%d", cpu, nodes[0]);
  for (int i = 1; i < node_count && length < MOST_TEXT; i++) {
    length += snprintf(own + length, sizeof own - (size_t)length, ",%d", nodes[i]);
  }
  const char *from = strcmp(task->memory, "remote") == 0 ? own : set;
  char *data = (char *)hither_alloc((size_t)PAGES * PAGE, from, task->memory, HITHER_SMALL);
  if (!data) {
    task->refused = 1;
    snprintf(task->reason, sizeof task->reason, "%s", hither_last_error());
  } else {
    memset(data, 1, (size_t)PAGES * PAGE);
    for (int page = 0; page < PAGES; page++) {
      task->wrong += !is_right(task, data, page);
    }
    hither_free(data);
  }
  hither_unbind_thread();
  return NULL;
}

/* Threads of "fill" leave a node once it is full, those of "round-robin" after each thread. */
static int are_placed(const struct task *tasks, const char *threads) {
  unsigned changes = 0;
  for (unsigned i = 0; i < thread_count; i++) {
    if (position(tasks[i].node) < 0) {
      return 0;
    }
    changes += i > 0 && tasks[i].node != tasks[i - 1].node;
  }
  if (node_count == 1) {
    return changes == 0;
  }
  return strcmp(threads, "fill") == 0 ? changes < (unsigned)node_count : changes == thread_count - 1;
}

/* All threads under one pair of policies. */
static int check(const char *threads, const char *memory) {
  static struct task tasks[MOST_THREADS];
  pthread_t running[MOST_THREADS];
  for (unsigned i = 0; i < thread_count; i++) {
    memset(&tasks[i], 0, sizeof tasks[i]);
    tasks[i].threads = threads;
    tasks[i].memory = memory;
    tasks[i].index = i;
    if (pthread_create(&running[i], NULL, work, &tasks[i]) != 0) {
      fprintf(stderr, "rsets: no thread\n");
      exit(1);
    }
  }
  unsigned wrong = 0, refused = 0;
  for (unsigned i = 0; i < thread_count; i++) {
    pthread_join(running[i], NULL);
    wrong += tasks[i].wrong;
    refused += (unsigned)tasks[i].refused;
  }
  int placed = are_placed(tasks, threads);
  printf("%-16s %-10s nodes of threads", threads, memory);
  for (unsigned i = 0; i < thread_count; i++) {
    printf(" %d", tasks[i].node);
  }
  /* There is no other node on a machine with one: then, and only then, "remote" must be refused. */
  int must_refuse = node_count == 1 && strcmp(memory, "remote") == 0;
  if (must_refuse && refused == thread_count) {
    printf(", refused: %s\n", tasks[0].reason);
    return placed;
  }
  printf(", %u of %u pages as promised%s\n", (thread_count - refused) * PAGES - wrong, thread_count * PAGES,
         placed ? "" : ", threads are NOT");
  return placed && wrong == 0 && refused == 0;
}

int main(int argument_count, char **arguments) {
  if (argument_count > 1) {
    set = arguments[1];
  }
  if (argument_count > 2) {
    long count = strtol(arguments[2], NULL, 10);
    if (count < 1 || count > MOST_THREADS) {
      fprintf(stderr, "rsets: %s: write 1 to %d threads\n", arguments[2], MOST_THREADS);
      return 2;
    }
    thread_count = (unsigned)count;
  }
  char text[1024];
  if (hither_describe_set(set, text, sizeof text) < 0) {
    return fail("hither_describe_set");
  }
  printf("%s: %s", set, text);
  /* Which nodes the set has: pages striped over all of them tell. */
  size_t all = (size_t)MOST_NODES * PAGE;
  char *data = (char *)hither_alloc(all, set, "striped", HITHER_SMALL | HITHER_POPULATE);
  uint64_t pages[MOST_NODES];
  int highest = data ? hither_where(data, all, pages, MOST_NODES, NULL) : -1;
  if (highest < 1 || hither_free(data) != HITHER_OK) {
    return fail("hither_alloc");
  }
  for (int node = 0; node < highest && node < MOST_NODES; node++) {
    if (pages[node]) {
      nodes[node_count++] = node;
    }
  }
  int good = 1;
  const char *threads[] = {"fill", "round-robin:node"}, *memory[] = {"local", "remote", "striped:2"};
  for (int t = 0; t < 2; t++) {
    for (int m = 0; m < 3; m++) {
      good &= check(threads[t], memory[m]);
    }
  }
  printf("%s\n", good ? "every thread and every page is where it was promised" : "NOT as promised");
  return good ? 0 : 1;
}
