/* A passage where it stands: what the whole text and its neighbours add to it, its weight in the
 * linear model, and the numbers of its traits for the network.
 *
 * Weights are whole thousandths, so that a sum does not depend on the order of its parts. */
#include <string.h>

#include "passages.h"

#define NEIGHBOURS 2
#define MAX_PAIRED 128
#define NUMBER_WORDS (CW_MAX_NUMBERS / 64)

/* In the order of `TEXT_TRAITS` in ctext/passages.py; the shapes of the text follow. */
enum text_trait {
    TEXT_OF_ONE, TEXT_OF_FEW, TEXT_OF_SOME, TEXT_OF_MANY,
    NO_OTHER_ORDER, FEW_ORDERS, SOME_ORDERS, ALL_ORDERS,
    ABOUT_ATTACKS, TO_A_READER, TEXT_OF_CODE, TEXT_OF_A_LETTER,
};

static int has_trait(const uint64_t *traits, size_t number) {
    return number < CW_TRAITS && traits[number / 64] >> number % 64 & 1;
}

static uint64_t of_count(size_t count) {
    return BIT(count <= 1 ? TEXT_OF_ONE : count <= 4 ? TEXT_OF_FEW
                                      : count <= 15  ? TEXT_OF_SOME
                                                     : TEXT_OF_MANY);
}

static uint64_t of_orders(size_t orders, size_t count) {
    double share = count ? (double)orders / (double)count : 0;
    return BIT(orders <= 1 ? NO_OTHER_ORDER : share <= 0.15 ? FEW_ORDERS
                                          : share <= 0.4    ? SOME_ORDERS
                                                            : ALL_ORDERS);
}

/* What the passages of a text have in common; `shape` is that of the whole text. */
void cw_surroundings(const struct common_traits *common, const struct passage *passages,
                     size_t count, uint64_t shape, struct surroundings *found) {
    size_t orders = 0, talks = 0, asks = 0, code = 0, letters = 0, scripts[SCRIPTS] = {0};
    uint32_t order[SCRIPTS], known = 0;
    for (size_t n = 0; n < count; n++) {
        const uint64_t *traits = passages[n].traits;
        orders += traits[FORM_WORD] >> ORDER & 1;
        code += traits[FORM_WORD] >> CODE & 1;
        talks += has_trait(traits, common->attack_talk) || has_trait(traits, common->about);
        asks += has_trait(traits, common->you) || has_trait(traits, common->modal);
        letters += has_trait(traits, common->letter);
        uint32_t script = passages[n].script;
        if (script < SCRIPTS && !scripts[script]++)
            order[known++] = script;
    }
    uint32_t main = LATIN;
    for (uint32_t n = 0; n < known; n++)
        if (n == 0 || scripts[order[n]] > scripts[main])
            main = order[n];
    *found = (struct surroundings){shape | of_count(count) | of_orders(orders, count), count, main,
                                   0};
    if (talks >= 3 && (double)talks > 0.06 * (double)count)
        found->traits |= BIT(ABOUT_ATTACKS);
    if ((double)asks > 0.3 * (double)count && count > 4)
        found->traits |= BIT(TO_A_READER);
    if ((double)code > 0.3 * (double)count)
        found->traits |= BIT(TEXT_OF_CODE);
    if (letters >= 2)
        found->traits |= BIT(TEXT_OF_A_LETTER);
}

struct place {
    uint64_t own[CW_TRAIT_WORDS];
    uint32_t beside[CW_CARRIED], beside_count;
    uint32_t in_text[CW_TEXT_TRAITS], in_text_count;
};

static void find_place(const struct placing *placing, const struct passage *passages, size_t number,
                       const struct surroundings *text, struct place *place) {
    uint64_t near[CW_TRAIT_WORDS] = {0};
    size_t count = text->count, first = number < NEIGHBOURS ? 0 : number - NEIGHBOURS;
    memcpy(place->own, passages[number].traits, sizeof place->own);
    if (passages[number].script != text->script)
        place->own[FORM_WORD] |= BIT(OTHER_SCRIPT);
    if (number == count - 1 && count > 1)
        place->own[FORM_WORD] |= BIT(LAST);
    if (number == 0)
        place->own[FORM_WORD] |= BIT(BEGINS);
    if (number + 3 >= count && count > 4)
        place->own[FORM_WORD] |= BIT(NEAR_END);
    for (size_t other = first; other < count && other <= number + NEIGHBOURS; other++)
        for (int word = 0; other != number && word < CW_TRAIT_WORDS; word++)
            near[word] |= passages[other].traits[word];
    place->beside_count = 0;
    for (uint32_t n = 0; n < CW_CARRIED; n++)
        if (has_trait(near, placing->carried[n]))
            place->beside[place->beside_count++] = n;
}

struct numbers {
    uint64_t found[NUMBER_WORDS];
};

static void add_number(struct numbers *numbers, uint32_t number) {
    if (number < CW_MAX_NUMBERS)
        numbers->found[number / 64] |= BIT(number % 64);
}

static uint32_t lowest(uint64_t bits) { return (uint32_t)__builtin_ctzll(bits); }

/* The weight of each two traits of a passage, and of each with one of the text and of a neighbour. */
static int64_t of_pairs(const struct placing *placing, const struct place *place,
                        const uint32_t *paired, size_t count) {
    int64_t total = 0;
    for (size_t n = 0; n < count; n++) {
        const int32_t *both = placing->both + (size_t)paired[n] * placing->pair_count;
        const int32_t *within = placing->within + (size_t)paired[n] * CW_TEXT_TRAITS;
        const int32_t *by = placing->by + (size_t)paired[n] * CW_CARRIED;
        for (size_t other = n + 1; other < count; other++)
            total += both[paired[other]];
        for (uint32_t other = 0; other < place->in_text_count; other++)
            total += within[place->in_text[other]];
        for (uint32_t other = 0; other < place->beside_count; other++)
            total += by[place->beside[other]];
    }
    return total;
}

static int64_t weigh(const struct placing *placing, const struct place *place,
                     struct numbers *numbers) {
    uint32_t paired[MAX_PAIRED];
    size_t count = 0;
    int64_t total = 0;
    for (uint32_t word = 0; word < CW_TRAIT_WORDS; word++)
        for (uint64_t left = place->own[word]; left; left &= left - 1) {
            uint32_t trait = 64 * word + lowest(left), pair = placing->pairs[trait];
            total += placing->own[trait];
            add_number(numbers, placing->own_numbers[trait]);
            if (pair < placing->pair_count && count < MAX_PAIRED)
                paired[count++] = pair;
        }
    for (uint32_t n = 0; n < place->in_text_count; n++) {
        total += placing->text[place->in_text[n]];
        add_number(numbers, placing->text_numbers[place->in_text[n]]);
    }
    for (uint32_t n = 0; n < place->beside_count; n++) {
        total += placing->beside[place->beside[n]];
        add_number(numbers, placing->beside_numbers[place->beside[n]]);
    }
    return total + of_pairs(placing, place, paired, count);
}

/* The weights of the chosen passages, and the numbers of their traits in rising order, of which
 * those of one passage end at `ends`; there is room for CW_MAX_NUMBERS of each. Returns how many
 * numbers there are. */
size_t cw_passages_place(const struct placing *placing, const struct passage *passages,
                         const struct surroundings *text, const uint64_t *chosen,
                         size_t chosen_count, int32_t *weights, uint32_t *numbers,
                         uint64_t *ends) {
    struct place place;
    size_t count = 0;
    place.in_text_count = 0;
    for (uint64_t left = text->traits; left; left &= left - 1)
        place.in_text[place.in_text_count++] = lowest(left);
    for (size_t n = 0; n < chosen_count; n++) {
        struct numbers found = {{0}};
        weights[n] = 0;
        if (chosen[n] < text->count) {
            find_place(placing, passages, chosen[n], text, &place);
            weights[n] = (int32_t)weigh(placing, &place, &found);
        }
        for (uint32_t word = 0; word < NUMBER_WORDS; word++)
            for (uint64_t left = found.found[word]; left; left &= left - 1)
                numbers[count++] = 64 * word + lowest(left);
        ends[n] = count;
    }
    return count;
}
