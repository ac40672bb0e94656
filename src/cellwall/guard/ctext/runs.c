/* Where a text may hold something encoded: chains of certain letters and digits, and long runs. */
#include "passes.h"

#define LANE_BITS 16

static void note(struct places *places, size_t place)
{
    if (places->count < places->room)
        places->found[places->count] = place;
    if (places->count < UINT64_MAX)
        places->count++;
}

/* Where so many bytes begin that end at `at`, not counted those that the lane passes over. Those may
 * be without end and be gone through again and again, so all steps back are counted. */
static size_t back(const uint8_t *data, size_t at, size_t bytes,
                   const struct survey_tables *tables, uint64_t lane, size_t *steps)
{
    for (; *steps; --*steps, at--) {
        bytes -= !(tables->keeps[data[at]] & lane);
        if (!bytes || !at)
            break;
    }
    return at;
}

static void note_ends(const uint8_t *data, size_t at, uint64_t ended,
                      const struct survey_tables *tables, struct survey *survey, size_t *steps)
{
    for (int number = 0; number < CHAINS; number++) {
        uint64_t last = (uint64_t)0x8000 << LANE_BITS * number;
        struct places *places = &survey->chains[number];
        if (!(ended & last))
            continue;
        /* What is passed over may also be a part of it: one more byte back it cannot begin. */
        size_t bytes = tables->loose & last ? LANE_BITS + 1 : LANE_BITS;
        if (places->count < places->room)
            note(places, back(data, at, bytes, tables, last, steps));
        if (tables->loose & last)
            note(places, at);
        if (!*steps || places->count >= places->room)
            places->count = UINT64_MAX; /* too many, or too far apart, to be told one by one */
    }
}

/* Three lanes of sixteen bits each follow a chain of sixteen bytes: in it a bit is set for each byte
 * that the chain may have come to. The next byte of a text moves on the bits that it may be the next
 * for (`moves`), and leaves those as they are between which it may stand (`keeps`). All in one pass:
 * to go through a text costs more than to look for one thing more. */
void cw_survey(const uint8_t *data, size_t size, const struct survey_tables *tables,
               struct survey *survey)
{
    uint64_t lanes = 0;
    size_t steps = 4 * size + 4096;
    const uint64_t firsts = tables->firsts, lasts = tables->lasts;
    for (size_t at = 0; at < size; at++) {
        uint64_t moves = tables->moves[data[at]];
        lanes = ((lanes << 1 | firsts) & moves) | (lanes & tables->keeps[data[at]]);
        if (lanes & lasts & moves)
            note_ends(data, at, lanes & lasts & moves, tables, survey, &steps);
    }
}

/* Where runs of at least so many bytes of a set begin. Looks first at the byte that would be the last
 * of a run: if it is none, neither is all before it. */
void cw_runs(const uint8_t *data, size_t size, const byte_set set, size_t least,
             struct places *places)
{
    size_t from = 0, known = 0; /* from one to the other all belong to the set */
    while (least && size - from >= least) {
        size_t at = from + least;
        while (at > known && set[data[at - 1]])
            at--;
        if (at > known) {
            known = from + least;
            from = at;
            continue;
        }
        note(places, from);
        for (from += least; from < size && set[data[from]]; from++)
            ;
        known = from;
    }
}
