/* Runs kept inputs without libFuzzer: each argument is a file that holds one. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int main(int argc, char **argv) {
  static uint8_t data[1 << 20];
  for (int i = 1; i < argc; i++) {
    FILE *file = fopen(argv[i], "rb");
    if (file == NULL) return 2;
    size_t size = fread(data, 1, sizeof data, file);
    fclose(file);
    LLVMFuzzerTestOneInput(data, size);
  }
  printf("%d inputs\n", argc - 1);
  return 0;
}
