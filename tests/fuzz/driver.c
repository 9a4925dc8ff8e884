/* What libFuzzer calls. The program is called by the name of its target: a native one is a C function, called without
   Python; the others are functions of checks.py, followed line by line so that coverage of Python guides them too. */

#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void (*Target)(const uint8_t *data, size_t size);

static Target native;
static PyObject *check;

/* -- coverage of C: each module offers its counters when it is loaded (build.py has the linker call these) ----------- */

void __sanitizer_cov_8bit_counters_init(uint8_t *start, uint8_t *stop);
void __sanitizer_cov_pcs_init(const uintptr_t *start, const uintptr_t *stop);

static char counted[256];   /* parts of the paths of modules that count, each behind a blank */

static int counts(const void *address)
{
    Dl_info info;
    char part[64];
    const char *at = counted;
    int length;
    if (dladdr(address, &info) == 0 || info.dli_fname == NULL)
        return 1;
    while (sscanf(at, " %63s%n", part, &length) == 1) {
        if (strstr(info.dli_fname, part) != NULL)
            return 1;
        at += length;
    }
    return counted[0] == 0;
}

void __wrap___sanitizer_cov_8bit_counters_init(uint8_t *start, uint8_t *stop)
{
    if (counts(start))
        __sanitizer_cov_8bit_counters_init(start, stop);
}

void __wrap___sanitizer_cov_pcs_init(const uintptr_t *start, const uintptr_t *stop)
{
    if (counts(start))
        __sanitizer_cov_pcs_init(start, stop);
}

/* -- coverage of Python: one counter for each step from line to line, as edges are counted in C -------------------- */

enum { N_COUNTERS = 1 << 14 };
static uint8_t counters[N_COUNTERS];
static uintptr_t places[2 * N_COUNTERS];
static uint64_t last;

static int is_followed(PyCodeObject *code)
{
    /* Most steps stay in a function. A reference is kept, so that no other code comes to lie at the address. */
    static PyCodeObject *latest;
    static int followed;
    if (code != latest) {
        const char *name = PyUnicode_AsUTF8(code->co_filename);
        followed = name != NULL && strstr(name, "/lib/pgdecode/") != NULL;
        Py_XDECREF(latest);
        Py_INCREF(code);
        latest = code;
    }
    return followed;
}

static int follow(PyObject *object, PyFrameObject *frame, int what, PyObject *argument)
{
    PyCodeObject *code = PyFrame_GetCode(frame);
    if (what == PyTrace_LINE && is_followed(code)) {
        /* Hashes of strings do not differ from run to run: PYTHONHASHSEED is 0. */
        uint64_t function = (uint64_t)PyObject_Hash(code->co_filename) + 1000003 * (uint64_t)code->co_firstlineno;
        uint64_t here = function + (uint64_t)PyFrame_GetLasti(frame);
        /* The upper 14 bits: N_COUNTERS. */
        uint8_t *counter = &counters[((here ^ last << 1) * 0x9E3779B97F4A7C15u) >> 50];
        if (*counter < 255)
            ++*counter;
        last = here;
    }
    Py_DECREF(code);
    return 0;
}

static void follow_python(void)
{
    __sanitizer_cov_8bit_counters_init(counters, counters + N_COUNTERS);
    /* libFuzzer wants a place in the code for each counter, and prints it; these have none but a number. */
    for (int i = 0; i < N_COUNTERS; i++)
        places[2 * i] = (uintptr_t)&counters[i];
    __sanitizer_cov_pcs_init(places, places + 2 * N_COUNTERS);
}

/* -- Python ---------------------------------------------------------------------------------------------------- */

static void leave(void)
{
    PyErr_Print();
    abort();
}

static void start_python(void)
{
    /* The interpreter of the development environment, by whose path Python finds its packages. */
    const char *program = getenv("PGDECODE_FUZZ_PYTHON");
    PyConfig config;
    PyConfig_InitPythonConfig(&config);
    config.install_signal_handlers = 0;
    config.use_hash_seed = 1;
    config.hash_seed = 0;
    if (program == NULL) {
        fprintf(stderr, "PGDECODE_FUZZ_PYTHON is not set; python -m fuzz sets it\n");
        exit(1);
    }
    if (PyStatus_Exception(PyConfig_SetBytesString(&config, &config.program_name, program)) ||
        PyStatus_Exception(Py_InitializeFromConfig(&config))) {
        fprintf(stderr, "Python does not start as %s\n", program);
        exit(1);
    }
    PyConfig_Clear(&config);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    const char *name = strrchr((*argv)[0], '/');
    name = name == NULL ? (*argv)[0] : name + 1;
    start_python();
    PyObject *module = PyImport_ImportModule("fuzz.targets");
    PyObject *parts = module == NULL ? NULL : PyObject_CallMethod(module, "counted", "s", name);
    if (parts == NULL)
        leave();
    snprintf(counted, sizeof(counted), "%s", PyUnicode_AsUTF8(parts));
    PyObject *found = module == NULL ? NULL : PyObject_CallMethod(module, "target", "s", name);
    if (found == NULL)
        leave();
    if (PyLong_Check(found)) {
        native = (Target)PyLong_AsVoidPtr(found);
    } else {
        check = found;
        follow_python();
    }
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (native != NULL) {
        native(data, size);
        return 0;
    }
    PyObject *input = PyBytes_FromStringAndSize((const char *)data, (Py_ssize_t)size);
    last = 0;
    PyEval_SetTrace(follow, NULL);
    PyObject *done = input == NULL ? NULL : PyObject_CallOneArg(check, input);
    PyEval_SetTrace(NULL, NULL);
    if (done == NULL)
        leave();
    Py_DECREF(done);
    Py_DECREF(input);
    return 0;
}
