/* Regions with every wrong argument that C can pass, within each other, and after fork(). */
#include <hither.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int failed, one, two;

#define REFUSED(code, call) refused(__LINE__, #call, code, (call))
#define HOLDS(condition) refused(__LINE__, #condition, 1, !!(condition))

static void refused(int line, const char *call, int wanted, int found) {
  if (found != wanted || (wanted < 0 && strlen(hither_last_error()) < 10)) {
    fprintf(stderr, "regions.c:%d: %s: %d instead of %d: %s\n", line, call, found, wanted,
            hither_last_error());
    failed = 1;
  }
}

static void *self(void *argument) {
  *(pthread_t *)argument = pthread_self();
  return argument;
}

/* In a visit to `one`. */
static void *nested(void *argument) {
  pthread_t here = pthread_self(), seen;
  void *result = NULL;
  REFUSED(0, hither_region_run(one, self, &seen, &result));
  HOLDS(result == &seen && pthread_equal(seen, here));
  REFUSED(0, hither_region_run(two, self, &seen, NULL));
  HOLDS(!pthread_equal(seen, here));
  REFUSED(HITHER_EBUSY, hither_region_destroy(one));
  int own = hither_region_create("allowed", 2);
  HOLDS(own > 0 && own != one && own != two);
  REFUSED(0, hither_region_run(own, self, &seen, NULL));
  REFUSED(0, hither_region_destroy(own));
  REFUSED(HITHER_EBADF, hither_region_run(own, self, &seen, NULL));
  return argument;
}

int main(void) {
  REFUSED(HITHER_EFAULT, hither_region_create(NULL, 1));
  REFUSED(HITHER_EINVAL, hither_region_create("", 1));
  REFUSED(HITHER_EINVAL, hither_region_create("mem:0", 1));
  REFUSED(HITHER_EINVAL, hither_region_create("domain:9999", 1));
  REFUSED(HITHER_EINVAL, hither_region_create("allowed", 1025));
  REFUSED(HITHER_EINVAL, hither_region_create("allowed", UINT32_MAX));
  one = hither_region_create("allowed", 0);
  two = hither_region_create("domain:0", 1);
  HOLDS(one > 0 && two > 0 && one != two);

  pthread_t seen;
  void *result = &seen;
  REFUSED(HITHER_EFAULT, hither_region_run(one, NULL, NULL, &result));
  HOLDS(result == &seen);
  REFUSED(HITHER_EBADF, hither_region_run(0, self, &seen, NULL));
  REFUSED(HITHER_EBADF, hither_region_run(-1, self, &seen, NULL));
  REFUSED(HITHER_EBADF, hither_region_run(INT_MAX, self, &seen, NULL));
  REFUSED(HITHER_EBADF, hither_region_run(INT_MIN, self, &seen, NULL));
  REFUSED(HITHER_EBADF, hither_region_destroy(one + two));
  REFUSED(0, hither_region_run(one, self, &seen, NULL));
  HOLDS(!pthread_equal(seen, pthread_self()));
  REFUSED(0, hither_region_run(one, nested, &one, &result));
  HOLDS(result == &one);

  pid_t child = fork();
  if (child == 0) {
    REFUSED(HITHER_EFORK, hither_region_run(one, self, &seen, NULL));
    REFUSED(HITHER_EFORK, hither_region_create("allowed", 1));
    REFUSED(HITHER_EFORK, hither_region_destroy(one));
    _exit(failed);
  }
  int status = -1;
  HOLDS(waitpid(child, &status, 0) == child && status == 0);

  REFUSED(0, hither_region_destroy(one));
  REFUSED(HITHER_EBADF, hither_region_destroy(one));
  REFUSED(HITHER_EBADF, hither_region_run(one, self, &seen, NULL));
  /* The line is used again, by another number. */
  int again = hither_region_create("allowed", 3);
  HOLDS(again > 0 && again != one);
  REFUSED(HITHER_EBADF, hither_region_run(one, self, &seen, NULL));
  REFUSED(0, hither_region_run(again, self, &seen, NULL));
  REFUSED(0, hither_region_destroy(again));
  REFUSED(0, hither_region_destroy(two));
  return failed;
}
