/* Tells the daemon of itself, as the arguments say: prints code and sentence of each call. */
#include <hither.h>
#include <stdio.h>
#include <string.h>

int main(int count, char **words) {
  for (int at = 1; at < count; at++) {
    int code = strcmp(words[at], "out") == 0 ? hither_opt_out() : hither_opt_in();
    printf("%d %s\n", code, hither_last_error());
  }
  return 0;
}
