/* Tells the daemon of itself, as the arguments say: prints code and sentence of each call. */
#include <hither.h>
#include <stdio.h>
#include <string.h>

int main(int count, char **words) {
  for (int at = 1; at < count; at++) {
    int code;
    if (strcmp(words[at], "out") == 0)
      code = hither_opt_out();
    else if (strcmp(words[at], "in") == 0)
      code = hither_opt_in();
    else if (strcmp(words[at], "pin") == 0)
      code = hither_declare((const void *)0x10000, 0x3000, HITHER_HINT_PIN_SLOW);
    else if (strcmp(words[at], "none") == 0)
      code = hither_declare((const void *)0x10000, 0x3000, HITHER_HINT_NONE);
    else if (strcmp(words[at], "beyond") == 0)
      code = hither_declare((const void *)0x10000, UINT64_MAX, HITHER_HINT_HOT);
    else
      code = hither_declare((const void *)0x10000, 0x3000, 77);
    printf("%d %s\n", code, hither_last_error());
  }
  return 0;
}
