"""Copies past the caches, to memory that is not read soon: it is not fetched first, and displaces nothing.

If the compiler's target has no such stores, the copies are ordinary ones. PGDECODE_PLAIN_COPIES builds that branch,
for a test.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t

cdef extern from *:
    """
    #ifndef PGDECODE_UNCACHED
    #define PGDECODE_UNCACHED
    #include <stddef.h>
    #include <stdint.h>
    #include <string.h>
    #if defined(__SSE2__) && !defined(PGDECODE_PLAIN_COPIES)
    #define PGDECODE_STREAMS
    #include <emmintrin.h>
    #endif

    enum { PGDECODE_LINE = 64, PGDECODE_FEW_BYTES = 1024 };

    /* Copies whole lines; returns how many bytes. */
    static inline size_t pgdecode_copy_lines(uint8_t *to, const uint8_t *from, size_t n) {
        size_t at = 0;
    #ifdef PGDECODE_STREAMS
        for (; at + PGDECODE_LINE <= n; at += PGDECODE_LINE) {
            const __m128i *source = (const __m128i *)(from + at);
            __m128i *target = (__m128i *)(to + at);
            __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
            __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
            _mm_stream_si128(target, a);
            _mm_stream_si128(target + 1, b);
            _mm_stream_si128(target + 2, c);
            _mm_stream_si128(target + 3, d);
        }
        _mm_sfence();
    #endif
        return at;
    }

    static inline void pgdecode_copy_uncached(void *to, const void *from, size_t n) {
        size_t head = (size_t)(-(uintptr_t)to % PGDECODE_LINE);
        if (n >= PGDECODE_FEW_BYTES) {
            memcpy(to, from, head);
            head += pgdecode_copy_lines((uint8_t *)to + head, (const uint8_t *)from + head, n - head);
            memcpy((uint8_t *)to + head, (const uint8_t *)from + head, n - head);
        } else if (n) {
            memcpy(to, from, n);
        }
    }

    static inline void pgdecode_add_uncached(int32_t *to, const int32_t *from, size_t n, int32_t added) {
        size_t at = 0;
    #ifdef PGDECODE_STREAMS
        __m128i all = _mm_set1_epi32(added);
        if (n * sizeof(int32_t) >= PGDECODE_FEW_BYTES) {
            for (; (uintptr_t)(to + at) % PGDECODE_LINE; at++)
                to[at] = from[at] + added;
            for (; at + 16 <= n; at += 16)
                for (int i = 0; i < 16; i += 4)
                    _mm_stream_si128(
                        (__m128i *)(to + at + i),
                        _mm_add_epi32(_mm_loadu_si128((const __m128i *)(from + at + i)), all));
            _mm_sfence();
        }
    #endif
        for (; at < n; at++)
            to[at] = from[at] + added;
    }

    static inline void pgdecode_fill_uncached(int32_t *to, size_t n, int32_t value) {
        size_t at = 0;
    #ifdef PGDECODE_STREAMS
        __m128i all = _mm_set1_epi32(value);
        if (n * sizeof(int32_t) >= PGDECODE_FEW_BYTES) {
            for (; (uintptr_t)(to + at) % PGDECODE_LINE; at++)
                to[at] = value;
            for (; at + 16 <= n; at += 16)
                for (int i = 0; i < 16; i += 4)
                    _mm_stream_si128((__m128i *)(to + at + i), all);
            _mm_sfence();
        }
    #endif
        for (; at < n; at++)
            to[at] = value;
    }
    #endif
    """
    void copy_uncached "pgdecode_copy_uncached" (void *to, const void *from_, size_t n) nogil
    # Copies numbers, and adds `added` to each.
    void add_uncached "pgdecode_add_uncached" (int32_t *to, const int32_t *from_, size_t n, int32_t added) nogil
    void fill_uncached "pgdecode_fill_uncached" (int32_t *to, size_t n, int32_t value) nogil
