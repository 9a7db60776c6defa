/* A program that has little memory is told so, and lives on. */
#include <hither.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* Bytes of address space that this process has. */
static rlim_t mapped(void) {
  unsigned long pages = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  if (file == NULL || fscanf(file, "%lu", &pages) != 1) exit(3);
  fclose(file);
  return (rlim_t)pages * 4096;
}

/* Opens the largest mover with so much memory more than the program has. */
static void try(rlim_t more) {
  struct rlimit limit = {mapped() + more, mapped() + more};
  if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(4);
  struct hither_config config;
  memset(&config, 0, sizeof config);
  config.capacity = 32768;
  config.workers = 16;
  int handle = hither_open_config(&config, sizeof config);
  if (handle == HITHER_ENOMEM) _exit(strlen(hither_last_error()) > 10 ? 10 : 5);
  if (handle < 0) _exit(6);
  struct hither_request *req = hither_alloc_request(handle);
  if (req == NULL || hither_free_request(req) != 0) _exit(7);
  _exit(hither_close(handle) == 0 ? 11 : 8);
}

int main(void) {
  int refused = 0, opened = 0;
  /* Close together where it is decided: one thread more or less. */
  for (rlim_t more = 0; more <= (rlim_t)160 << 20; more += (rlim_t)1 << 20) {
    pid_t pid = fork();
    if (pid == 0) try(more);
    int status = 0;
    if (waitpid(pid, &status, 0) != pid) return 2;
    if (!WIFEXITED(status) || WEXITSTATUS(status) < 10) {
      fprintf(stderr, "with %lu MiB more: status %#x\n", (unsigned long)more >> 20, status);
      return 1;
    }
    *(WEXITSTATUS(status) == 10 ? &refused : &opened) += 1;
  }
  printf("%s and %s\n", refused > 20 ? "refused" : "never refused", opened > 20 ? "opened" : "never opened");
  return 0;
}
