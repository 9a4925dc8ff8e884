/* Baselines of the benchmarks: the minimum work of any reader of these bytes.
 *
 * `baselines.py` compiles this file at each run; it is not part of the package. Values are not decoded and no column is
 * built: a message becomes tuple cells (kind, start, length) in an index that the caller has allocated and written to.
 */
#include <stdint.h>
#include <string.h>

typedef struct {
    uint8_t *kinds;    /* n, u, t or b as on the wire */
    uint32_t *starts;  /* of the value, in bytes from the start of the Arrow data buffer */
    uint32_t *lengths; /* 0 for n and u */
} CellIndex;

static inline uint32_t uint16_at(const uint8_t *p) { return (uint32_t)p[0] << 8 | p[1]; }

static inline uint32_t uint32_at(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* Sum of all 64-bit words, the last one padded with zeros: reads every byte and does nothing else. */
uint64_t read_all(const uint8_t *bytes, int64_t n_bytes)
{
    uint64_t sum = 0, word;
    int64_t at = 0;
    for (; at + 8 <= n_bytes; at += 8) {
        memcpy(&word, bytes + at, 8);
        sum += word;
    }
    word = 0;
    memcpy(&word, bytes + at, (size_t)(n_bytes - at));
    return sum + word;
}

/* Each walk_* returns the start of the next part, or NULL if bytes are missing or unexpected. */

static inline const uint8_t *walk_tuple(
    const uint8_t *p, const uint8_t *end, const uint8_t *base, const CellIndex *index, int64_t *n_cells)
{
    if (!p || end - p < 2)
        return NULL;
    uint32_t count = uint16_at(p);
    int64_t cell = *n_cells;
    p += 2;
    for (uint32_t i = 0; i < count; i++, cell++) {
        if (p == end)
            return NULL;
        uint8_t kind = *p++;
        uint32_t length = 0;
        if (kind == 't' || kind == 'b') {
            if (end - p < 4)
                return NULL;
            length = uint32_at(p);
            p += 4;
            if (length > (uint64_t)(end - p))
                return NULL;
        } else if (kind != 'n' && kind != 'u') {
            return NULL;
        }
        if (index) {
            index->kinds[cell] = kind;
            index->starts[cell] = (uint32_t)(p - base);
            index->lengths[cell] = length;
        }
        p += length;
    }
    *n_cells = cell;
    return p;
}

static inline const uint8_t *walk_string(const uint8_t *p, const uint8_t *end)
{
    const uint8_t *nul = p && p < end ? memchr(p, 0, (size_t)(end - p)) : NULL;
    return nul ? nul + 1 : NULL;
}

static inline const uint8_t *walk_bytes(const uint8_t *p, const uint8_t *end, uint64_t n)
{
    return p && n <= (uint64_t)(end - p) ? p + n : NULL;
}

static const uint8_t *walk_relation(const uint8_t *p, const uint8_t *end)
{
    p = walk_string(walk_string(walk_bytes(p, end, 4), end), end);
    if (!p || end - p < 3)
        return NULL;
    uint32_t count = uint16_at(p + 1);
    p += 3;
    for (uint32_t i = 0; i < count; i++)
        p = walk_bytes(walk_string(walk_bytes(p, end, 1), end), end, 8);
    return p;
}

/* Some messages carry an xid between Stream Start and Stream Stop: `xid` is its size in bytes there, 0 elsewhere. */
static inline const uint8_t *walk_message(
    const uint8_t *p, const uint8_t *end, const uint8_t *base, uint32_t *xid, const CellIndex *index, int64_t *n_cells)
{
    if (p == end)
        return NULL;
    uint8_t tag = *p++;
    switch (tag) {
    case 'B':
        return walk_bytes(p, end, 20);
    case 'C':
        return walk_bytes(p, end, 25);
    case 'O':
        return walk_string(walk_bytes(p, end, 8), end);
    case 'S':
        *xid = 4;
        return walk_bytes(p, end, 5);
    case 'E':
        *xid = 0;
        return p;
    case 'c':
        return walk_bytes(p, end, 29);
    case 'A':
        return end - p == 8 || end - p == 24 ? end : NULL;
    }
    p = walk_bytes(p, end, *xid);
    if (!p)
        return NULL;
    switch (tag) {
    case 'I':
        return end - p > 5 && p[4] == 'N' ? walk_tuple(p + 5, end, base, index, n_cells) : NULL;
    case 'U':
        if (end - p < 5)
            return NULL;
        p += 4;
        if (*p == 'K' || *p == 'O')
            p = walk_tuple(p + 1, end, base, index, n_cells);
        return p && p < end && *p == 'N' ? walk_tuple(p + 1, end, base, index, n_cells) : NULL;
    case 'D':
        return end - p > 5 && (p[4] == 'K' || p[4] == 'O') ? walk_tuple(p + 5, end, base, index, n_cells) : NULL;
    case 'R':
        return walk_relation(p, end);
    case 'Y':
        return walk_string(walk_string(walk_bytes(p, end, 4), end), end);
    case 'T':
        return end - p < 5 ? NULL : walk_bytes(p + 5, end, 4 * (uint64_t)uint32_at(p));
    case 'M':
        p = walk_string(walk_bytes(p, end, 9), end);
        return p && end - p >= 4 ? walk_bytes(p + 4, end, uint32_at(p)) : NULL;
    default:
        return NULL; /* the data have no two-phase messages */
    }
}

static inline int64_t walk_all(const uint8_t *base, const int32_t *offsets, int64_t n_rows, const CellIndex *index)
{
    int64_t n_cells = 0;
    uint32_t xid = 0;
    for (int64_t row = 0; row < n_rows; row++) {
        const uint8_t *end = base + offsets[row + 1];
        if (walk_message(base + offsets[row], end, base, &xid, index, &n_cells) != end)
            return -1 - row;
    }
    return n_cells;
}

/* Number of tuple cells in all payloads, or -1 - row of the first payload that is not such a message. */
int64_t count_cells(const uint8_t *base, const int32_t *offsets, int64_t n_rows)
{
    return walk_all(base, offsets, n_rows, NULL);
}

/* The same; also writes every cell to an index that has space for `count_cells` cells. */
int64_t index_cells(
    const uint8_t *base, const int32_t *offsets, int64_t n_rows, uint8_t *kinds, uint32_t *starts, uint32_t *lengths)
{
    CellIndex index = {kinds, starts, lengths};
    return walk_all(base, offsets, n_rows, &index);
}
