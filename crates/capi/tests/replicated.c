/* Replicated arrays with every wrong argument that C can pass, and after fork(). */
#include <hither.h>
#include <limits.h>
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
    fprintf(stderr, "replicated.c:%d: %s: %d instead of %d: %s\n", line, call, found, wanted,
            hither_last_error());
    failed = 1;
  }
}

static int create(unsigned field, uint32_t value) {
  struct hither_replicated_config config;
  memset(&config, 0, sizeof config);
  uint32_t *fields = &config.chunk_bytes;
  fields[field] = value;
  return hither_replicated_create(1 << 20, &config, sizeof config);
}

static void creating(void) {
  struct {
    struct hither_replicated_config known;
    char more[8];
  } newer;
  memset(&newer, 0, sizeof newer);
  REFUSED(HITHER_EINVAL, hither_replicated_create(0, NULL, sizeof newer.known));
  REFUSED(HITHER_EINVAL, hither_replicated_create(1, NULL, 0));
  REFUSED(HITHER_EINVAL, hither_replicated_create(1, &newer.known, SIZE_MAX));
  REFUSED(HITHER_EINVAL, hither_replicated_create(SIZE_MAX, NULL, sizeof newer.known));
  int array = hither_replicated_create(1, &newer.known, sizeof newer);
  HOLDS(array > 0);
  REFUSED(0, hither_replicated_destroy(array));
  REFUSED(HITHER_EBADF, hither_replicated_destroy(array));
  newer.more[7] = 1;
  REFUSED(HITHER_E2BIG, hither_replicated_create(1, &newer.known, sizeof newer));
  REFUSED(HITHER_EINVAL, create(0, 4096)); /* chunk_bytes */
  REFUSED(HITHER_EINVAL, create(1, 8));    /* flags */
  REFUSED(HITHER_EINVAL, create(2, 1 << 20)); /* readers */
  REFUSED(HITHER_EINVAL, create(4, 65));   /* copies */
}

int main(void) {
  creating();
  int array = create(4, 3);
  HOLDS(array > 0);
  char bytes[8] = "abcdefg", text[64];
  void *memory = NULL;
  struct hither_view view;
  REFUSED(HITHER_EFAULT, hither_replicated_write(array, 0, NULL, 1, 0));
  REFUSED(HITHER_EINVAL, hither_replicated_write(array, 0, bytes, 8, -2));
  REFUSED(HITHER_EINVAL, hither_replicated_write(array, (1 << 20) - 7, bytes, 8, 0));
  REFUSED(HITHER_EINVAL, hither_replicated_write(array, SIZE_MAX, bytes, 8, 0));
  REFUSED(HITHER_EINVAL, hither_replicated_write(array, 0, bytes, SIZE_MAX, 0));
  REFUSED(HITHER_EBADF, hither_replicated_write(array + 1, 0, bytes, 8, 0));
  REFUSED(HITHER_EFAULT, hither_replicated_prepare(array, 0, 1, 0, NULL));
  REFUSED(HITHER_EINVAL, hither_replicated_prepare(array, 1, SIZE_MAX, 0, &memory));
  REFUSED(HITHER_EINVAL, hither_replicated_publish(array));
  REFUSED(HITHER_EINVAL, hither_replicated_abandon(array));
  REFUSED(HITHER_EINVAL, hither_replicated_prepare(array, 0, 2 << 20, 0, &memory));
  REFUSED(0, hither_replicated_prepare(array, 0, 1, 0, &memory));
  REFUSED(HITHER_EBUSY, hither_replicated_write(array, 0, bytes, 8, 0));
  REFUSED(HITHER_ETIMEDOUT, hither_replicated_refresh(array, 1));
  REFUSED(HITHER_ETIMEDOUT, hither_replicated_collapse(array, 1));
  *(char *)memory = 'z';
  REFUSED(0, hither_replicated_abandon(array));
  REFUSED(0, hither_replicated_write(array, 0, bytes, 8, 0));
  REFUSED(0, hither_replicated_refresh(array, 20000));

  REFUSED(HITHER_EINVAL, hither_replicated_reader(array, 3));
  REFUSED(HITHER_EINVAL, hither_replicated_reader(array, -2));
  REFUSED(HITHER_EBADF, hither_replicated_reader(array + 1, -1));
  int reader = hither_replicated_reader(array, 2);
  HOLDS(reader >= 0);
  REFUSED(HITHER_EBUSY, hither_replicated_destroy(array));
  REFUSED(HITHER_EFAULT, hither_replicated_read(reader, NULL));
  REFUSED(HITHER_EINVAL, hither_replicated_done(reader));
  REFUSED(HITHER_EBADF, hither_replicated_read(INT_MAX, &view));
  REFUSED(HITHER_EBADF, hither_replicated_read(-1, &view));
  REFUSED(HITHER_EBADF, hither_replicated_close_reader(INT_MIN));
  REFUSED(0, hither_replicated_read(reader, &view));
  HOLDS(view.epoch == 2 && view.bytes == 1 << 20 && view.is_local == 1);
  HOLDS(memcmp(view.data, bytes, 8) == 0 && view.chunks[0] == view.data);
  REFUSED(0, hither_replicated_write(array, 1, "B", 1, 0));
  REFUSED(HITHER_ETIMEDOUT, hither_replicated_write(array, 1, "C", 1, 5));
  HOLDS(memcmp(view.data, bytes, 8) == 0);
  /* Reading again lets go what is held. */
  REFUSED(0, hither_replicated_read(reader, &view));
  HOLDS(view.epoch == 3 && ((const char *)view.data)[1] == 'B');
  REFUSED(0, hither_replicated_write(array, 1, "C", 1, 5));
  HOLDS(hither_replicated_report(array, text, sizeof text) > (int)sizeof text);
  HOLDS(strlen(text) == sizeof text - 1);
  REFUSED(HITHER_EFAULT, hither_replicated_report(array, NULL, 1));

  pid_t child = fork();
  if (child == 0) {
    REFUSED(HITHER_EFORK, hither_replicated_read(reader, &view));
    REFUSED(HITHER_EFORK, hither_replicated_write(array, 0, bytes, 8, -1));
    REFUSED(HITHER_EFORK, hither_replicated_create(1, NULL, sizeof(struct hither_replicated_config)));
    REFUSED(HITHER_EFORK, hither_replicated_destroy(array));
    /* What was held at the fork is whole. */
    HOLDS(((const char *)view.data)[1] == 'B' && view.epoch == 3);
    _exit(failed);
  }
  int status = 1;
  HOLDS(waitpid(child, &status, 0) == child && status == 0);
  REFUSED(0, hither_replicated_done(reader));
  REFUSED(0, hither_replicated_close_reader(reader));
  REFUSED(HITHER_EBADF, hither_replicated_close_reader(reader));
  REFUSED(HITHER_EBADF, hither_replicated_read(reader, &view));
  int again = hither_replicated_reader(array, 0);
  HOLDS(again >= 0 && again != reader);
  REFUSED(0, hither_replicated_close_reader(again));
  REFUSED(0, hither_replicated_collapse(array, 20000));
  REFUSED(0, hither_replicated_destroy(array));
  return failed;
}
