/*
 * One poll() for moves and for other input: copies run while lines come from a pipe. Each line
 * asks for one more copy; the loop ends when the pipe is closed and every copy is completed.
 *
 *   cc event_loop.c $(pkg-config --cflags --libs hither) -pthread -o event_loop && ./event_loop
 */
#include <hither.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { ORDERS = 64, BYTES = 32 << 10 };

static unsigned char source[BYTES], target[ORDERS][BYTES];

/* The other input: someone who orders copies, one byte each. */
static void *customer(void *argument) {
  int pipe_end = *(int *)argument;
  for (int i = 0; i < ORDERS; i++) {
    if (write(pipe_end, "+", 1) != 1) {
      break;
    }
    if (i % 8 == 0) {
      usleep(1000); /* lets the loop fall asleep at times */
    }
  }
  close(pipe_end);
  return NULL;
}

static int submit(int handle, int order) {
  struct hither_request *req = hither_alloc_request(handle);
  if (!req) {
    return hither_last_code();
  }
  req->kind = HITHER_REPLICATE;
  req->src_base = source;
  req->dst_base = target[order];
  req->length = BYTES;
  req->tag = (uint64_t)order;
  int code = hither_submit_request(req);
  if (code != HITHER_OK) {
    hither_free_request(req);
  }
  return code;
}

int main(void) {
  int ends[2], ordered = 0, completed = 0, good = 0;
  pthread_t thread;
  memset(source, 0xa5, sizeof source);
  int handle = hither_open(NULL);
  if (handle < 0) {
    fprintf(stderr, "event_loop: %s\n", hither_last_error());
    return 1;
  }
  if (pipe(ends) != 0 || pthread_create(&thread, NULL, customer, &ends[1]) != 0) {
    perror("event_loop");
    return 1;
  }
  struct pollfd fds[2] = {{.fd = handle, .events = POLLIN, .revents = 0},
                          {.fd = ends[0], .events = POLLIN, .revents = 0}};
  while (fds[1].fd >= 0 || completed < ordered) {
    if (poll(fds, 2, -1) < 0) {
      continue;
    }
    if (fds[0].revents) {
      struct hither_request *req;
      while ((req = hither_retrieve(handle))) { /* until nothing is left, then poll() again */
        completed++;
        good += req->status == HITHER_DONE && memcmp(source, target[req->tag], BYTES) == 0;
        hither_free_request(req);
      }
    }
    if (fds[1].revents) {
      char orders[16];
      ssize_t count = read(ends[0], orders, sizeof orders);
      if (count <= 0) {
        close(ends[0]);
        fds[1].fd = -1; /* poll() leaves it out from now on */
      }
      for (ssize_t i = 0; i < count; i++) {
        int code = submit(handle, ordered);
        if (code != HITHER_OK) {
          fprintf(stderr, "event_loop: %s\n", hither_strerror(code));
          return 1;
        }
        ordered++;
      }
    }
  }
  pthread_join(thread, NULL);
  hither_close(handle);
  printf("%d of %d copies\n", good, ORDERS);
  return good == ORDERS ? 0 : 1;
}
