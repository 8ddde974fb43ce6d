/* Preloaded into slurmd and slurmstepd on a machine that has cgroups of version 1 beside those of version 2: of /proc/PID/cgroup
 * they see the line of version 2 alone, as on a machine that has no others. Without it slurmd says "Hybrid mode is not supported".
 * What is in the line is the kernel's, at each time that it is read. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int of_version_2(int all) {
    char text[16384];
    size_t length = 0;
    ssize_t got;
    while (length < sizeof text - 1 && (got = read(all, text + length, sizeof text - 1 - length)) > 0) length += (size_t)got;
    text[length] = 0;
    close(all);
    int file = memfd_create("cgroup", MFD_CLOEXEC);
    for (char *line = text, *end; *line; line = end) {
        end = strchrnul(line, '\n');
        if (*end) end++;
        if (!strncmp(line, "0::", 3) && write(file, line, (size_t)(end - line)) < 0) break;
    }
    lseek(file, 0, SEEK_SET);
    return file;
}

static int is_of_a_process(const char *path) {
    size_t length = strlen(path);
    return !strncmp(path, "/proc/", 6) && length > 7 && !strcmp(path + length - 7, "/cgroup");
}

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        static int (*next)(const char *, int, ...); \
        va_list rest; \
        if (!next) *(void **)&next = dlsym(RTLD_NEXT, #name); \
        va_start(rest, flags); \
        int file = next(path, flags, va_arg(rest, int)); \
        va_end(rest); \
        return file >= 0 && is_of_a_process(path) ? of_version_2(file) : file; \
    }
#define FOPEN(name) \
    FILE *name(const char *path, const char *mode) { \
        static FILE *(*next)(const char *, const char *); \
        if (!next) *(void **)&next = dlsym(RTLD_NEXT, #name); \
        if (!is_of_a_process(path)) return next(path, mode); \
        int file = open(path, O_RDONLY | O_CLOEXEC); \
        return file < 0 ? NULL : fdopen(file, mode); \
    }
OPEN(open)
OPEN(open64)
FOPEN(fopen)
FOPEN(fopen64)
