/*
 * Figure 2 of the memif paper (Lin and Liu, ASPLOS 2016) with its names changed, filled in where
 * the figure has dots: moves ten regions, computes meanwhile, and consumes each as it completes.
 *
 *   cc figure2.c $(pkg-config --cflags --libs hither) -o figure2 && ./figure2
 */
#include <hither.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

enum { REGIONS = 10, BYTES = 64 << 10 };

static unsigned char from[REGIONS][BYTES], to[REGIONS][BYTES];

static int consume(struct hither_request *req) {
  int region = (int)req->tag;
  int good = req->status == HITHER_DONE && memcmp(from[region], to[region], BYTES) == 0;
  hither_free_request(req);
  return good;
}

int main(void) {
  int consumed = 0, good = 0;
  memset(from, 0x5a, sizeof from);

  int memfd = hither_open("self");
  if (memfd < 0) {
    fprintf(stderr, "figure2: %s\n", hither_last_error());
    return 1;
  }
  struct hither_request *req;
  /* Request to move memory regions */
  for (int i = 0; i < REGIONS; i++) {
    req = hither_alloc_request(memfd);
    if (!req) {
      fprintf(stderr, "figure2: %s\n", hither_last_error());
      return 1;
    }
    /* populate all the fields */
    req->src_base = from[i];
    req->dst_base = to[i];
    req->length = BYTES;
    req->kind = HITHER_REPLICATE;
    req->tag = (uint64_t)i;
    if (hither_submit_request(req) != 0) { /* non-blocking */
      fprintf(stderr, "figure2: %s\n", hither_last_error());
      return 1;
    }
  }

  /* Do computation ... */

  if ((req = hither_retrieve_completed())) { /* Is any move completed? */
    consumed++;
    good += consume(req);
  }
  while (consumed < REGIONS) {
    /* No other work, sleep until any move is completed. */
    struct pollfd fdset = {.fd = memfd, .events = POLLIN, .revents = 0};
    poll(&fdset, 1, -1);
    while ((req = hither_retrieve_completed())) {
      consumed++;
      good += consume(req);
    }
  }
  hither_close(memfd);
  printf("%d of %d regions moved\n", good, REGIONS);
  return good == REGIONS ? 0 : 1;
}
