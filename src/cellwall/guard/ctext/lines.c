/* Lines that begin with certain words. */
#include <string.h>

#include "passes.h"

/* Whether one of the words, each ended by a NUL and all of them by another, begins here and is
 * followed by one of the bytes that may follow it. */
static int begins_with(const char *words, const uint8_t *data, size_t size, const byte_set follow)
{
    for (size_t length; (length = strlen(words)); words += length + 1)
        if (length < size && memcmp(data, words, length) == 0 && follow[data[length]])
            return 1;
    return 0;
}

/* Where lines begin that have one of the words behind at most so many ornaments. Returns how many
 * there are, of which no more than `room` are told. */
size_t cw_line_heads(const uint8_t *data, size_t size, const byte_set ornaments, size_t most,
                     const char *words, const byte_set follow, uint64_t *places, size_t room)
{
    size_t found = 0, start = 0;
    byte_set first = {0};
    for (const char *word = words; *word; word += strlen(word) + 1)
        first[(uint8_t)*word] = 1;
    while (start < size) {
        size_t at = start;
        while (at < size && at - start < most && ornaments[data[at]])
            at++;
        if (at < size && first[data[at]] && begins_with(words, data + at, size - at, follow)) {
            if (found < room)
                places[found] = start;
            found++;
        }
        const uint8_t *line_end = memchr(data + at, '\n', size - at);
        if (!line_end)
            break;
        start = (size_t)(line_end - data) + 1;
    }
    return found;
}
