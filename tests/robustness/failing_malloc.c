/* The C allocator for a test to preload: it fails chosen allocations, and counts what has not been given back.
 *
 * Chosen are those of pgdecode's native modules, and those of Arrow's memory pool where that is the "system" one, which
 * alone uses posix_memalign. All others, the interpreter's among them, are left alone.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <link.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* glibc's own entries, so that nothing has to be looked up before the first allocation. */
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *block, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);
extern void __libc_free(void *block);

enum { MOST_HELD = 4096, MOST_RANGES = 256 };

static atomic_long seen_count, first_failing, last_failing;
static atomic_flag held_lock = ATOMIC_FLAG_INIT;
static void *held[MOST_HELD]; /* blocks of pgdecode's modules */
static atomic_long held_count;
static struct {
    uintptr_t start, end;
} ranges[MOST_RANGES]; /* code of pgdecode's modules */
static long range_count;

static int add_module(struct dl_phdr_info *module, size_t size, void *unused)
{
    int i;
    (void)size;
    (void)unused;
    /* The environment, and so pyarrow, may lie in a folder of that name too; names of modules begin with _. */
    if (strstr(module->dlpi_name, "/pgdecode/_") == NULL)
        return 0;
    for (i = 0; i < module->dlpi_phnum && range_count < MOST_RANGES; i++) {
        const ElfW(Phdr) *header = &module->dlpi_phdr[i];
        if (header->p_type != PT_LOAD || !(header->p_flags & PF_X))
            continue;
        ranges[range_count].start = module->dlpi_addr + header->p_vaddr;
        ranges[range_count].end = ranges[range_count].start + header->p_memsz;
        range_count++;
    }
    return 0;
}

/* Call once, when all modules are loaded; before, no allocation is chosen. How many modules there are. */
long find_modules(void)
{
    dl_iterate_phdr(add_module, NULL);
    return range_count;
}

/* Fail the chosen allocations from the first to the last, counted from 1; with (0, 0) none. */
void fail_allocations(long first, long last)
{
    atomic_store(&seen_count, 0);
    atomic_store(&first_failing, first);
    atomic_store(&last_failing, last);
}

/* How many there have been since. */
long allocations_seen(void)
{
    return atomic_load(&seen_count);
}

/* How many blocks pgdecode's modules have not given back. */
long blocks_held(void)
{
    return atomic_load(&held_count);
}

static int must_fail(void)
{
    long number = atomic_fetch_add(&seen_count, 1) + 1;
    return number >= atomic_load(&first_failing) && number <= atomic_load(&last_failing);
}

static int is_ours(const void *caller)
{
    long i;
    for (i = 0; i < range_count; i++)
        if ((uintptr_t)caller >= ranges[i].start && (uintptr_t)caller < ranges[i].end)
            return 1;
    return 0;
}

static void *keep(void *block)
{
    if (block != NULL) {
        while (atomic_flag_test_and_set(&held_lock)) {
        }
        if (held_count == MOST_HELD)
            __builtin_trap(); /* a leak past all doubt */
        held[held_count++] = block;
        atomic_flag_clear(&held_lock);
    }
    return block;
}

static void forget(void *block)
{
    long i;
    if (block == NULL || held_count == 0)
        return;
    while (atomic_flag_test_and_set(&held_lock)) {
    }
    for (i = 0; i < held_count; i++) {
        if (held[i] == block) {
            held[i] = held[--held_count];
            break;
        }
    }
    atomic_flag_clear(&held_lock);
}

void *malloc(size_t size)
{
    if (!is_ours(__builtin_return_address(0)))
        return __libc_malloc(size);
    if (must_fail()) {
        errno = ENOMEM;
        return NULL;
    }
    return keep(__libc_malloc(size));
}

void *calloc(size_t n, size_t size)
{
    if (!is_ours(__builtin_return_address(0)))
        return __libc_calloc(n, size);
    if (must_fail()) {
        errno = ENOMEM;
        return NULL;
    }
    return keep(__libc_calloc(n, size));
}

void *realloc(void *block, size_t size)
{
    void *moved;
    if (!is_ours(__builtin_return_address(0)))
        return __libc_realloc(block, size);
    if (must_fail()) {
        errno = ENOMEM;
        return NULL;
    }
    moved = __libc_realloc(block, size);
    if (moved != NULL) {
        forget(block);
        keep(moved);
    }
    return moved;
}

int posix_memalign(void **block, size_t alignment, size_t size)
{
    if (range_count && must_fail())
        return ENOMEM;
    *block = __libc_memalign(alignment, size);
    return *block == NULL ? ENOMEM : 0;
}

void free(void *block)
{
    forget(block);
    __libc_free(block);
}
