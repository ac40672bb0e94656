/* Shared by the harness and the sources that it includes. */
#ifndef CELLWALL_HARNESS_H
#define CELLWALL_HARNESS_H
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "cell.h"

extern jmp_buf after_exit;
extern long signals_sent;
extern pid_t last_signalled;
extern const uint8_t *file_data;
extern size_t file_size;

void fuzz_job(struct plan plan);
void fuzz_stock(struct plan plan);
void fuzz_stock_messages(int fd, int peer, const char *text, size_t size);
void fuzz_init_message(int fd, int peer, const char *text, size_t size);
void fuzz_stat_line(void);
void fuzz_reaper(const char *text);
#endif
