/* Decodes the rows of the wide table with one loop that is written only for its twelve columns.
 *
 * This is what a C programmer who knows the table would write. Each value is parsed in the simplest way and stored in an
 * array that the caller has allocated and written to. Lengths, digits and dates are checked; UTF-8 is not. Old tuples of
 * updates are skipped; old tuples of deletes fill the columns. DateStyle, infinity, BC, rounding, limits, error texts and
 * other relations are not supported.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { N_COLUMNS = 12, N_TEXTS = 4 };

typedef struct {
    int32_t *ends; /* n + 1, the first is 0 */
    uint8_t *data;
} TextColumn;

typedef struct {
    int64_t *id;
    int32_t *a;
    int16_t *b;
    double *f;
    int64_t *n; /* two words each, the low one first: hundredths */
    uint8_t *ok;
    int32_t *d;
    int64_t *ts;
    TextColumn texts[N_TEXTS]; /* u, s, j, nul */
    uint8_t *valid;            /* N_COLUMNS bytes a row */
} Wide;

static inline uint32_t big32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static inline uint64_t big64(const uint8_t *p) { return (uint64_t)big32(p) << 32 | big32(p + 4); }

static inline int parse_digits(const uint8_t *p, uint32_t n, int64_t *number)
{
    int64_t found = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (p[i] < '0' || p[i] > '9')
            return 0;
        found = found * 10 + (p[i] - '0');
    }
    *number = found;
    return n > 0 && n < 19;
}

static inline int parse_integer(const uint8_t *p, uint32_t n, int64_t *number)
{
    int negative = n > 0 && *p == '-';
    int good = parse_digits(p + negative, n - (uint32_t)negative, number);
    *number = negative ? -*number : *number;
    return good;
}

static inline int parse_date(const uint8_t *p, int64_t *days)
{
    static const int before[] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334, 365};
    int64_t year, month, day;
    if (!parse_digits(p, 4, &year) || p[4] != '-' || !parse_digits(p + 5, 2, &month) || p[7] != '-')
        return 0;
    if (!parse_digits(p + 8, 2, &day) || year < 1 || month < 1 || month > 12)
        return 0;
    int leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    if (day < 1 || day > before[month] - before[month - 1] + (leap && month == 2))
        return 0;
    year--;
    *days = 365 * year + year / 4 - year / 100 + year / 400 + before[month - 1] + (leap && month > 2) + day - 719163;
    return 1;
}

/* 2024-01-01 00:00:01.234567+00 */
static inline int parse_timestamp(const uint8_t *p, uint32_t n, int64_t *us)
{
    int64_t days, hour, minute, second, zone, fraction = 0;
    if (n < 22 || !parse_date(p, &days) || p[10] != ' ' || p[13] != ':' || p[16] != ':')
        return 0;
    if (!parse_digits(p + 11, 2, &hour) || !parse_digits(p + 14, 2, &minute) || !parse_digits(p + 17, 2, &second))
        return 0;
    if ((p[n - 3] != '+' && p[n - 3] != '-') || !parse_digits(p + n - 2, 2, &zone))
        return 0;
    if (n > 22) {
        if (p[19] != '.' || n > 29 || !parse_digits(p + 20, n - 23, &fraction))
            return 0;
        for (uint32_t digits = n - 23; digits < 6; digits++)
            fraction *= 10;
    }
    hour -= p[n - 3] == '-' ? -zone : zone;
    *us = ((days * 24 + hour) * 60 + minute) * 60000000 + second * 1000000 + fraction;
    return minute < 60 && second < 60;
}

static inline int parse_hundredths(const uint8_t *p, uint32_t n, int64_t *number)
{
    int64_t whole, fraction;
    int negative = n > 0 && *p == '-';
    p += negative;
    n -= (uint32_t)negative;
    if (n < 4 || p[n - 3] != '.' || !parse_digits(p, n - 3, &whole) || !parse_digits(p + n - 2, 2, &fraction))
        return 0;
    *number = whole * 100 + fraction;
    *number = negative ? -*number : *number;
    return n < 17;
}

/* Groups of four digits in binary. */
static inline int read_hundredths(const uint8_t *p, uint32_t n, int64_t *number)
{
    uint32_t count = n < 8 ? 9 : (uint32_t)p[0] << 8 | p[1];
    int power = (int16_t)(p[2] << 8 | p[3]);
    int64_t found = 0;
    if (n != 8 + 2 * count || count > 4 || power > 3)
        return 0;
    for (uint32_t i = 0; i < count; i++, power--) {
        int64_t group = p[8 + 2 * i] << 8 | p[9 + 2 * i];
        if (power < -1)
            return 0;
        for (int times = power; times > 0; times--)
            group *= 10000;
        found += power < 0 ? group / 100 : group * 100;
    }
    *number = p[4] == 0x40 ? -found : found;
    return 1;
}

static inline int parse_double(const uint8_t *p, uint32_t n, double *number)
{
    char text[64], *end;
    if (n >= sizeof(text))
        return 0;
    memcpy(text, p, n);
    text[n] = 0;
    *number = strtod(text, &end);
    return n > 0 && end == text + n;
}

static inline int put_text(TextColumn *column, int64_t row, const uint8_t *p, uint32_t n)
{
    memcpy(column->data + column->ends[row], p, n);
    column->ends[row + 1] = column->ends[row] + (int32_t)n;
    return 1;
}

static inline int put_uuid(TextColumn *column, int64_t row, const uint8_t *p, uint32_t n)
{
    static const char digits[] = "0123456789abcdef";
    uint8_t *to = column->data + column->ends[row];
    if (n != 16)
        return 0;
    for (int i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            *to++ = '-';
        *to++ = (uint8_t)digits[p[i] >> 4];
        *to++ = (uint8_t)digits[p[i] & 15];
    }
    column->ends[row + 1] = column->ends[row] + 36;
    return 1;
}

static inline int put_from_text(Wide *out, int64_t row, int column, const uint8_t *p, uint32_t n)
{
    int64_t number = 0;
    int good;
    switch (column) {
    case 0:
        return parse_integer(p, n, &out->id[row]);
    case 1:
        good = parse_integer(p, n, &number);
        out->a[row] = (int32_t)number;
        return good && number == out->a[row];
    case 2:
        good = parse_integer(p, n, &number);
        out->b[row] = (int16_t)number;
        return good && number == out->b[row];
    case 3:
        return parse_double(p, n, &out->f[row]);
    case 4:
        good = parse_hundredths(p, n, &out->n[2 * row]);
        out->n[2 * row + 1] = out->n[2 * row] >> 63;
        return good;
    case 5:
        out->ok[row] = *p == 't';
        return n == 1 && (*p == 't' || *p == 'f');
    case 6:
        good = n == 10 && parse_date(p, &number);
        out->d[row] = (int32_t)number;
        return good;
    case 7:
        return parse_timestamp(p, n, &out->ts[row]);
    case 8:
        return n == 36 && put_text(&out->texts[0], row, p, n);
    default:
        return put_text(&out->texts[column - 8], row, p, n);
    }
}

static inline int put_from_binary(Wide *out, int64_t row, int column, const uint8_t *p, uint32_t n)
{
    static const uint8_t widths[] = {8, 4, 2, 8, 0, 1, 4, 8};
    uint64_t bits;
    int good;
    if (column < 8 && widths[column] && n != widths[column])
        return 0;
    switch (column) {
    case 0:
        out->id[row] = (int64_t)big64(p);
        return 1;
    case 1:
        out->a[row] = (int32_t)big32(p);
        return 1;
    case 2:
        out->b[row] = (int16_t)(p[0] << 8 | p[1]);
        return 1;
    case 3:
        bits = big64(p);
        memcpy(&out->f[row], &bits, 8);
        return 1;
    case 4:
        good = read_hundredths(p, n, &out->n[2 * row]);
        out->n[2 * row + 1] = out->n[2 * row] >> 63;
        return good;
    case 5:
        out->ok[row] = *p != 0;
        return 1;
    case 6:
        out->d[row] = (int32_t)big32(p) + 10957; /* 2000-01-01 - 1970-01-01 */
        return 1;
    case 7:
        out->ts[row] = (int64_t)big64(p) + 946684800000000;
        return 1;
    case 8:
        return put_uuid(&out->texts[0], row, p, n);
    case 10:
        return n > 0 && *p == 1 && put_text(&out->texts[2], row, p + 1, n - 1);
    default:
        return put_text(&out->texts[column - 8], row, p, n);
    }
}

static const uint8_t *decode_tuple(Wide *out, int64_t row, const uint8_t *p, const uint8_t *end, int wanted)
{
    if (end - p < 2 || (p[0] << 8 | p[1]) != N_COLUMNS)
        return NULL;
    p += 2;
    for (int column = 0; column < N_COLUMNS; column++) {
        if (p == end)
            return NULL;
        uint8_t kind = *p++;
        uint8_t valid = kind == 't' || kind == 'b';
        if (valid) {
            if (end - p < 4)
                return NULL;
            uint32_t n = big32(p);
            p += 4;
            if (n > (uint64_t)(end - p))
                return NULL;
            if (wanted && !(kind == 't' ? put_from_text : put_from_binary)(out, row, column, p, n))
                return NULL;
            p += n;
        } else if (wanted && column >= N_COLUMNS - N_TEXTS) {
            TextColumn *texts = &out->texts[column - (N_COLUMNS - N_TEXTS)];
            texts->ends[row + 1] = texts->ends[row];
        }
        if (wanted)
            out->valid[N_COLUMNS * row + column] = valid;
    }
    return p;
}

/* Number of rows, or -1 - row for one that is not as expected. */
int64_t decode_wide(const uint8_t *bytes, const int32_t *offsets, int64_t n_rows, Wide *out)
{
    for (int64_t row = 0; row < n_rows; row++) {
        const uint8_t *p = bytes + offsets[row], *end = bytes + offsets[row + 1];
        if (end - p < 6)
            return -1 - row;
        int deleted = *p == 'D';
        if ((*p != 'I' && *p != 'U' && !deleted) || (p[5] == 'N') == deleted)
            return -1 - row;
        if (p[5] != 'N' && !deleted) {
            p = decode_tuple(out, row, p + 6, end, 0);
            if (!p || p == end || *p != 'N' || decode_tuple(out, row, p + 1, end, 1) != end)
                return -1 - row;
        } else if (decode_tuple(out, row, p + 6, end, 1) != end) {
            return -1 - row;
        }
    }
    return n_rows;
}
