/* partage-limit-hook: the driver's memory limits of a container, in force before its first instruction.
 *
 *   partage-limit-hook set [--driver-root=DIR] UUID=BYTES [UUID=BYTES ...]
 *   partage-limit-hook cgroup [--driver-root=DIR] CGROUP UUID=BYTES [UUID=BYTES ...]
 *
 * The first is an OCI hook (createRuntime), run by the container runtime as root in the node's namespaces, with the state of the
 * container on standard input. For each GPU it sets the hard limit of the container's own cgroup and reads it back.
 * The second does the same for the cgroup with this path below /sys/fs/cgroup: Slurm's, which knows no containers.
 * Whatever goes wrong is one sentence on standard error and exit status 1: then the container is not created.
 * These arguments stay: a CDI file of an older agent names them for as long as its pods live. PARTAGE_GRANT, which the CDI file sets,
 * is another name for each request of a container: requests of one GPU are added. Without it the last one counts.
 *
 * It believes nothing of what a tenant can write: of the state only "id" and "pid" are used, which the runtime sets.
 * DIR is where the driver is installed. Only hard limits: a soft one would stay behind with its cgroup.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <unistd.h>

/* Built on a new system, it runs on older ones: glibc 2.34 moved these from other libraries and gave them new versions. */
#if defined(__x86_64__)
#define FIRST_GLIBC "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define FIRST_GLIBC "GLIBC_2.17"
#else
#error "GPUs with driver branch 615 are in machines with x86-64 or arm64"
#endif
__asm__(".symver dlopen,dlopen@" FIRST_GLIBC);
__asm__(".symver dlsym,dlsym@" FIRST_GLIBC);
__asm__(".symver first_start_main,__libc_start_main@" FIRST_GLIBC);
typedef void Nothing(void);
int first_start_main(int (*)(int, char **, char **), int, char **, Nothing *, Nothing *, Nothing *, void *);
int __wrap___libc_start_main(int (*entry)(int, char **, char **), int count, char **words, Nothing *init, Nothing *fini, Nothing *loader, void *stack);
int __wrap___libc_start_main(int (*entry)(int, char **, char **), int count, char **words, Nothing *init, Nothing *fini, Nothing *loader, void *stack) {
    return first_start_main(entry, count, words, init, fini, loader, stack);
}

enum { STATE_BYTES = 4 << 20, CGROUP_BYTES = 64 << 10, DEEPEST = 64, LARGEST_PID = 4 << 20, MOST_GPUS = 64, GRANT_BYTES = 140 };
#define CGROUPS "/sys/fs/cgroup"
#define CGROUP2_MAGIC 0x63677270
#define LIBRARY "libnvidia-ml.so.1"

typedef unsigned long long u64;
typedef struct { const char *directory; u64 soft, hard; } SetLimits;       /* nvmlSetMemoryLimits_v1_t */
typedef struct { const char *directory; u64 soft, hard, used; } GetLimits; /* nvmlGetMemoryLimits_v1_t */
typedef struct { char uuid[96]; u64 bytes; } Limit;
typedef struct { char id[256]; long pid; } State;

static int (*nvml_init)(void), (*nvml_shutdown)(void), (*nvml_handle)(const char *, void **);
static int (*nvml_set)(void *, SetLimits *), (*nvml_get)(void *, GetLimits *);
static const char *(*nvml_error)(int);
static int in_session;

/* What the pod's events will show. */
__attribute__((noreturn, format(printf, 1, 2))) static void fail(const char *format, ...) {
    static const char name[] = "partage-limit-hook: ";
    char text[2048];
    va_list arguments;
    memcpy(text, name, sizeof name);
    va_start(arguments, format);
    vsnprintf(text + sizeof name - 1, sizeof text - sizeof name, format, arguments);
    va_end(arguments);
    for (char *at = text; *at; at++)
        if (*at < ' ' || *at > '~') *at = '?';
    fprintf(stderr, "%s\n", text);
    if (in_session) nvml_shutdown();
    exit(1);
}

/* --- arguments -------------------------------------------------------------------------------- */

static int is_word(const char *text, size_t length) {
    for (size_t at = 0; at < length; at++)
        if (!strchr("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-", text[at])) return 0;
    return length > 0;
}

/* A number of at least 1 and less than all ones, which mean "no limit"; 0: it is none. */
static u64 number(const char *text) {
    u64 found = 0;
    if (!*text) return 0;
    for (; *text; text++) {
        if (*text < '0' || *text > '9' || found > (ULLONG_MAX - 9) / 10) return 0;
        found = found * 10 + (u64)(*text - '0');
    }
    return found;
}

static int limits_of(int count, char **words, Limit *to) {
    if (count > MOST_GPUS) fail("more than %d GPUs are named", MOST_GPUS);
    for (int at = 0; at < count; at++) {
        const char *sign = strchr(words[at], '=');
        size_t length = sign ? (size_t)(sign - words[at]) : 0;
        if (length >= sizeof to->uuid || *words[at] == '-' || !is_word(words[at], length) || !(to[at].bytes = number(sign + 1)))
            fail("the argument '%.128s' is not UUID=BYTES: its CDI file is of another version or damaged", words[at]);
        memcpy(to[at].uuid, words[at], length);
        to[at].uuid[length] = 0;
        for (int other = 0; other < at; other++)
            if (!strcmp(to[at].uuid, to[other].uuid)) fail("the GPU %s is named twice", to[at].uuid);
    }
    return count;
}

/* --- the state -------------------------------------------------------------------------------- */

/* All of a file, closed with a zero; at most size - 1 bytes of it, else the answer is size. */
static size_t read_all(int file, char *to, size_t size) {
    size_t length = 0;
    while (length < size) {
        ssize_t got = read(file, to + length, size - length);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return 0;
        if (!got) break;
        length += (size_t)got;
    }
    if (length < size) to[length] = 0;
    return length;
}

static const char *space(const char *at) { return at + strspn(at, " \t\r\n"); }

/* Behind a JSON string; NULL: there is none. */
static const char *behind_string(const char *at) {
    if (*at++ != '"') return NULL;
    for (; *at && *at != '"'; at++)
        if (*at == '\\' && !*++at) return NULL;
    return *at ? at + 1 : NULL;
}

/* Behind a JSON value of any kind; NULL: there is none, or it is too deep. */
static const char *behind_value(const char *at, int depth) {
    at = space(at);
    if (*at == '"') return behind_string(at);
    if (*at != '{' && *at != '[') {
        size_t length = strcspn(at, ",]} \t\r\n\"{[:");
        return length ? at + length : NULL;
    }
    char close = *at == '{' ? '}' : ']';
    if (!depth) return NULL;
    at = space(at + 1);
    if (*at == close) return at + 1;
    for (;;) {
        if (close == '}') {
            if (!(at = behind_string(space(at)))) return NULL;
            at = space(at);
            if (*at++ != ':') return NULL;
        }
        if (!(at = behind_value(at, depth - 1))) return NULL;
        at = space(at);
        if (*at == close) return at + 1;
        if (*at++ != ',') return NULL;
    }
}

/* The two members of the object itself; annotations, which are a tenant's, are objects in it. 0: it is damaged. */
static int read_members(const char *at, State *to) {
    at = space(at);
    if (*at++ != '{') return 0;
    for (;;) {
        const char *key = space(at), *value;
        if (!(at = behind_string(key)) || *(at = space(at)) != ':') return 0;
        value = space(at + 1);
        if (!(at = behind_value(value, DEEPEST))) return 0;
        size_t length = (size_t)(at - value);
        if (!strncmp(key, "\"pid\"", 5)) {
            char digits[16] = "";
            if (to->pid || length >= sizeof digits) return 0;
            memcpy(digits, value, length);
            u64 pid = number(digits);
            if (pid < 2 || pid > LARGEST_PID) return 0;
            to->pid = (long)pid;
        } else if (!strncmp(key, "\"id\"", 4)) {
            if (*to->id || *value != '"' || length < 3 || length - 2 >= sizeof to->id) return 0;
            memcpy(to->id, value + 1, length - 2);
            to->id[length - 2] = 0;
            if (strspn(to->id, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_+.-") != length - 2) return 0;
        }
        at = space(at);
        if (*at == '}') return !*space(at + 1);
        if (*at++ != ',') return 0;
    }
}

static State read_state(void) {
    State state = {"", 0};
    char *text = malloc(STATE_BYTES);
    if (!text) fail("there is no memory for the container's state");
    size_t length = read_all(0, text, STATE_BYTES);
    if (length == STATE_BYTES) fail("the container's state on standard input is longer than %d bytes", STATE_BYTES - 1);
    if (!length || strlen(text) != length || !read_members(text, &state) || !state.pid || !*state.id)
        fail("standard input is not the state of a container with id and pid, which a createRuntime hook is given");
    free(text);
    return state;
}

/* --- the cgroup ------------------------------------------------------------------------------- */

static int is_cgroup(const char *directory) {
    struct statfs kind;
    return !statfs(directory, &kind) && kind.f_type == CGROUP2_MAGIC;
}

static void need_cgroups(void) {
    if (!is_cgroup(CGROUPS)) fail("this node has no cgroup version 2 at " CGROUPS ", which the driver's memory limits need");
}

/* The directory of the cgroup with this path, which begins with a slash. */
static void name_cgroup(const char *path, char *to, size_t size) {
    if (strstr(path, "/..")) fail("the cgroup %s is outside of what this node shows: whoever asks runs in a cgroup namespace", path);
    if ((size_t)snprintf(to, size, CGROUPS "%s", path) >= size) fail("the path of the cgroup is too long");
    if (!is_cgroup(to)) fail("%s is no cgroup of version 2", to);
}

/* The directory of the container's own cgroup, of version 2. */
static void find_cgroup(const State *state, char *to, size_t size) {
    static char text[CGROUP_BYTES];
    char path[64];
    need_cgroups();
    snprintf(path, sizeof path, "/proc/%ld/cgroup", state->pid);
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    size_t length = file < 0 ? 0 : read_all(file, text, sizeof text);
    if (file >= 0) close(file);
    if (!length) fail("the container's process %ld is gone", state->pid);
    if (length == sizeof text) fail("%s is longer than %d bytes", path, CGROUP_BYTES - 1);
    char *line = text;
    while (*line && strncmp(line, "0::/", 4)) line += strcspn(line, "\n") + (line[strcspn(line, "\n")] != 0);
    if (!*line) fail("the container's process %ld is in no cgroup of version 2", state->pid);
    line += 3;
    line[strcspn(line, "\n")] = 0;
    size_t end = strlen(line);
    if (end >= 10 && !strcmp(line + end - 10, " (deleted)")) fail("the container's cgroup %s was removed", line);
    /* The process of gVisor and of a VM is not the tenant's: it is in the cgroup of the pod's sandbox. */
    if (!strstr(line, state->id))
        fail("process %ld is in the cgroup %s, which is not the one of container %s: its runtime (gVisor, a VM?) has no process to limit", state->pid, line, state->id);
    name_cgroup(line, to, size);
}

/* --- the driver ------------------------------------------------------------------------------- */

static void *symbol(void *library, const char *name, const char *path) {
    void *found = dlsym(library, name);
    if (!found) fail("%s has no function %s: memory limits need NVIDIA driver branch 615 or newer", path, name);
    return found;
}

static void load_library(const char *root) {
    static const char *const directories[] = {"usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu"};
    char path[PATH_MAX] = "";
    size_t end = strlen(root);
    while (end && root[end - 1] == '/') end--;
    for (size_t at = 0; at < sizeof directories / sizeof *directories && !*path; at++) {
        int length = snprintf(path, sizeof path, "%.*s/%s/" LIBRARY, (int)end, root, directories[at]);
        if (length >= (int)sizeof path || access(path, F_OK)) *path = 0;
    }
    /* Elsewhere on an unusual system the loader's own list has it; a driver's container has none for us. */
    if (!*path && !end) strcpy(path, LIBRARY);
    if (!*path) fail(LIBRARY " is not below %s: is the NVIDIA driver installed there?", root);
    void *library = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
    if (!library) fail("%s cannot be loaded: is the NVIDIA driver installed below %s?", path, root);
    *(void **)&nvml_init = symbol(library, "nvmlInit_v2", path);
    *(void **)&nvml_shutdown = symbol(library, "nvmlShutdown", path);
    *(void **)&nvml_error = symbol(library, "nvmlErrorString", path);
    *(void **)&nvml_handle = symbol(library, "nvmlDeviceGetHandleByUUID", path);
    *(void **)&nvml_set = symbol(library, "nvmlDeviceSetMemoryLimits_v1", path);
    *(void **)&nvml_get = symbol(library, "nvmlDeviceGetMemoryLimits_v1", path);
}

static void check(int code, const char *what, const char *uuid) {
    static const char *const hints[] = {
        [2] = ": more than the GPU has?",
        [3] = ": needs driver branch 615, a GPU that is not in MIG mode, and RmMemacctMode not 0",
        [4] = ": the hook has to run as root",
        [6] = ": is the GPU still there?",
    };
    const char *hint = code > 0 && code < (int)(sizeof hints / sizeof *hints) && hints[code] ? hints[code] : "";
    if (code) fail("%s %s failed: %s (NVML error %d)%s", what, uuid, nvml_error(code), code, hint);
}

/* An attribute of a cgroup that goes with it, and which root alone reads and writes; 0: it is not there. */
static u64 noted(const char *directory, const char *name) {
    char text[24] = "";
    ssize_t length = getxattr(directory, name, text, sizeof text - 1);
    return length > 0 ? number(text) : 0;
}

static int note(const char *directory, const char *name, u64 amount) {
    char text[24];
    return !setxattr(directory, name, text, (size_t)snprintf(text, sizeof text, "%llu", amount), 0);
}

/* The limit with what other requests of this container have of the GPU. One that is named twice counts once. What the driver holds
 * already is not asked: NVIDIA's hook, which believes a tenant's variables, may have set it. Where a cgroup has no attributes,
 * the last request counts alone: less than all together, never more. */
static u64 with_others(const Limit *limit, const char *directory, const char *grant) {
    char own[XATTR_NAME_MAX + 1], all[XATTR_NAME_MAX + 1];
    snprintf(own, sizeof own, "trusted.partage.%.139s.%.95s", grant, limit->uuid);
    snprintf(all, sizeof all, "trusted.partage.sum.%.95s", limit->uuid);
    u64 before = noted(directory, all), sum = before;
    if (!noted(directory, own)) {
        if (before >= ULLONG_MAX - limit->bytes) fail("the requests of this container are more than any GPU %s has", limit->uuid);
        sum += limit->bytes;
        if (!note(directory, own, limit->bytes) || !note(directory, all, sum)) return limit->bytes;
    }
    return sum > limit->bytes ? sum : limit->bytes;
}

static void set_limit(const Limit *limit, const char *directory) {
    void *gpu = NULL;
    SetLimits wanted = {directory, 0, limit->bytes};
    GetLimits found = {directory, ULLONG_MAX, 0, 0};
    check(nvml_handle(limit->uuid, &gpu), "looking for the GPU", limit->uuid);
    check(nvml_set(gpu, &wanted), "setting the memory limit on GPU", limit->uuid);
    check(nvml_get(gpu, &found), "reading the memory limit back from GPU", limit->uuid);
    if (found.hard != limit->bytes || found.soft)
        fail("the driver was told a memory limit of %llu bytes on GPU %s, and holds %llu (soft: %llu)", limit->bytes, limit->uuid, found.hard, found.soft);
}

int main(int count, char **words) {
    static const char option[] = "--driver-root=";
    static Limit limits[MOST_GPUS];
    static char directory[PATH_MAX], still[PATH_MAX], grant[GRANT_BYTES];
    const char *root = "/", *cgroup = NULL, *named = getenv("PARTAGE_GRANT");
    State state;
    int at = 2, of_container = count > 1 && !strcmp(words[1], "set");
    if (count > at && !strncmp(words[at], option, sizeof option - 1)) root = words[at++] + sizeof option - 1;
    if (!of_container && count > at) cgroup = words[at++];
    if (count <= at || *root != '/' || !(of_container || (!strcmp(words[1], "cgroup") && cgroup[0] == '/' && cgroup[1])))
        fail("used as: partage-limit-hook set [--driver-root=/DIR] UUID=BYTES [UUID=BYTES ...], or cgroup [--driver-root=/DIR] /CGROUP UUID=BYTES [UUID=BYTES ...]");
    int gpus = limits_of(count - at, words + at, limits);
    if (of_container) state = read_state();
    if (of_container && named && (!is_word(named, strlen(named)) || (size_t)snprintf(grant, sizeof grant, "%s", named) >= sizeof grant))
        fail("PARTAGE_GRANT is not the name of a request: its CDI file is damaged");
    clearenv(); /* the driver's library reads some variables, and none of the caller's are meant for it */
    if (of_container) find_cgroup(&state, directory, sizeof directory);
    else need_cgroups(), name_cgroup(cgroup, directory, sizeof directory);
    load_library(root);
    check(nvml_init(), "opening the NVIDIA driver below", root);
    in_session = 1;
    for (int gpu = 0; gpu < gpus; gpu++) {
        if (*grant) limits[gpu].bytes = with_others(&limits[gpu], directory, grant);
        set_limit(&limits[gpu], directory);
    }
    if (of_container) { /* another process may have been given the number of one that is gone */
        find_cgroup(&state, still, sizeof still);
        if (strcmp(directory, still)) fail("the container's process moved from %s to %s meanwhile", directory, still);
    }
    nvml_shutdown();
    return 0;
}
