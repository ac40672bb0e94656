/* Whether a run of base64 letters may hold text: told by its ends, as they are and in disguise. */
#include "passes.h"

#define GLANCE 64 /* letters at each end */

/* The number of a letter, -1 for what is none. */
static int number_of(uint8_t letter, int is_turned)
{
    if ((letter >= 'A' && letter <= 'Z') || (letter >= 'a' && letter <= 'z')) {
        int number = (letter & 0x1f) - 1;
        number = is_turned ? (number + 13) % 26 : number;
        return letter >= 'a' ? number + 26 : number;
    }
    if (letter >= '0' && letter <= '9')
        return letter - '0' + 52;
    if (letter == '+' || letter == '-')
        return 62;
    return letter == '/' || letter == '_' ? 63 : -1;
}

/* Decodes up to `GLANCE` bytes of a run, from its begin or back from its end. */
static size_t decoded(const uint8_t *run, size_t size, int is_mirrored, int is_turned,
                      uint8_t *data)
{
    uint32_t bits = 0;
    size_t letters = 0, count = 0;
    for (size_t i = 0; i < size && i < GLANCE; i++) {
        int number = number_of(run[is_mirrored ? size - 1 - i : i], is_turned);
        if (number < 0)
            continue;
        bits = bits << 6 | (uint32_t)number;
        letters++;
        if (letters % 4 != 1)
            data[count++] = (uint8_t)(bits >> (letters % 4 == 2 ? 4 : letters % 4 == 3 ? 2 : 0));
    }
    return count;
}

/* Where the first bytes stand that cannot be UTF-8; `size` if there are none. */
static size_t first_wrong(const uint8_t *data, size_t size)
{
    for (size_t at = 0; at < size;) {
        uint8_t lead = data[at];
        size_t length = lead < 0x80 ? 1 : lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
        if (!length || lead > 0xf4 || length > size - at)
            return at;
        for (size_t i = 1; i < length; i++)
            if ((data[at + i] & 0xc0) != 0x80)
                return at;
        at += length;
    }
    return size;
}

static int may_be_text(const uint8_t *data, size_t size)
{
    size_t zeros = 0, odd = 0, high = 0;
    if (size < 6)
        return 0;
    for (size_t i = 0; i < size; i++) {
        zeros += data[i] == 0;
        high += data[i] >= 0x80;
        odd += data[i] == 0x7f || (data[i] < 0x20 && !(data[i] >= '\t' && data[i] <= '\r'));
    }
    if (zeros * 4 >= size)
        return zeros * 5 <= size * 3; /* UTF-16 */
    return high ? first_wrong(data, size) + 3 >= size : odd * 8 <= size;
}

/* As `reading.readable` asks of what it reads, and a little less strict. */
int cw_base64_may_be_text(const uint8_t *run, size_t size)
{
    uint8_t data[GLANCE];
    for (int way = 0; way < 4; way++)
        if (may_be_text(data, decoded(run, size, way & 1, way & 2, data)))
            return 1;
    return 0;
}
