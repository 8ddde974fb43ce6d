/* A stand-in for libnvidia-ml.so.1: answers from the text file "machine.txt" beside the library, which is read
 * anew when it changes, so that a test can change the node while it is being looked at. A line is "key value".
 *
 *   init CODE            what nvmlInit answers          all CODE        what every other call answers
 *   fail.FUNCTION CODE   what one function answers      hang.FUNCTION MILLISECONDS
 *   gpu.I.code CODE      the GPU is lost (15), ...      event.N "GPU TYPE DATA GI CI", -1: none
 *
 * The others are named where they are read. A key that is missing means "not supported".
 *
 * A GPU with a key "gpu.I.live" keeps MIG mode and instances itself, in the file "live.bin" beside the library, which
 * all processes share; it refuses what hardware refuses. Other GPUs show the instances that are written down.
 *
 *   gpu.I.live reset|direct       whether a change of the mode needs a reset
 *   gpu.I.process.N "PID GI CI [BYTES KINDS]"
 *                                 who works on it, -1: on the GPU as a whole; memory, -1: not known; kinds: the lists
 *                                 that have it, of C (compute, default), G (graphics), M (client of MPS)
 *   gpu.I.used BYTES              memory that is given out; gpu.I.reserved: what older calls count as given out, too
 *   gpu.I.slice 0-3               that nvidia-smi lets its slice be set, and which it is at first
 *   gpu.I.util "GPU MEMORY"       percent; gpu.I.encoder, gpu.I.decoder
 *   gpu.I.power, gpu.I.limit      milliwatts; gpu.I.energy: millijoules; gpu.I.celsius; gpu.I.clock.TYPE: MHz
 *   gpu.I.throttle MASK           why clocks are lower; gpu.I.field.ID: values of fields; gpu.I.field.ID.type: their type
 *   gpu.I.busy.N "PID SM MEMORY ENCODER DECODER [AGE_MS]"
 *                                 what a process did, in percent of the GPU
 *   gpu.I.gpm.ID VALUE            what GPM measures, of the GPU; gpu.I.gi.G.gpm.ID: of a GPU instance
 *   gpu.I.mig.N.used BYTES        memory of a MIG device that is given out
 *   gpu.I.cold MILLISECONDS       how long it takes to initialise it, at its first use in a session
 *   gpu.I.monitor 1               somebody holds a handle: it blocks mode and reset, and nothing else
 *   lie.FUNCTION CODE             do it, and answer that it could not be done
 *   unprivileged 1                refuse what needs root
 *   gpu.I.limits misc|dmem        that it limits the memory of cgroups; dmem: where a directory has a file dmem.max.
 *                                 Every set is a line "GPU CGROUP SOFT HARD" of "limits.txt" beside the library
 *   gpu.I.cgroup.NAME BYTES       what the processes in the cgroup of that name use
 *   lists split                   in MIG mode the lists of a GPU lack the processes on MIG devices; unnamed: their instances
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, SMALL = 7, TIMED_OUT = 10 };
enum { RESET_REQUIRED = 16, OPERATING_SYSTEM = 17, IN_USE = 19, UNKNOWN = 999, INSUFFICIENT_RESOURCES = 23, VERSION_MISMATCH = 25 };
enum { GPU = 0x10000, MIG = 0x20000, GI = 0x30000, CI = 0x40000, KIND = 0xf0000 };

typedef unsigned long long u64;
typedef struct {
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} Pci;
typedef struct { u64 total, free, used; } Memory;
typedef struct { unsigned version; u64 total, reserved, free, used; } Memory2;
typedef struct { const char *cgroup; u64 soft, hard; } SetLimits;
typedef struct { const char *cgroup; u64 soft, hard, used; } GetLimits;
typedef struct {
    uint32_t id, scope;
    int64_t timestamp, latency;
    int type, result;
    union { unsigned ui; u64 ull; double d; } value;
} Field;
typedef struct { unsigned sm, copy, decoder, encoder, jpeg, ofa, gi_slices, ci_slices; u64 memory; } Attributes;
typedef struct { void *device; unsigned id, profile, start, size; } GiInfo;
typedef struct { unsigned id, p2p, slices, rest[7]; u64 memory; } Profile;
typedef struct { unsigned version, id, p2p, slices, rest[7]; u64 memory; char name[96]; } NamedProfile;
typedef struct { unsigned id, slices, rest[7]; } ComputeProfile;
typedef struct { unsigned start, size; } Place;
typedef struct { void *device, *instance; unsigned id, profile, start, size; } CiInfo;
typedef struct { unsigned pid; u64 memory; unsigned gi, ci; } Process;
typedef struct { unsigned constant, id, slices, most, size, starts[8], places; u64 memory; } Kind;
typedef struct { int exists; unsigned profile, start, size, slices, memory; } LiveGi;
typedef struct { int exists; unsigned gi, ci, slices, serial; } LiveCi;
typedef struct { int current, pending, persistent, mode, slice; LiveGi gi[16]; LiveCi ci[8]; } LiveGpu; /* mode, slice: 0 not set, else one more */
typedef struct { int sessions, serial; LiveGpu gpu[8]; } Live;
typedef struct { void *device; u64 type, data; unsigned gi, ci; } Event;
typedef struct { unsigned version; uint8_t cluster[16]; int status; uint32_t clique; uint8_t state; uint32_t health; } Fabric;

static int sessions;   /* how often nvmlInit was called and not yet undone */
static int next_event; /* the first event that was not delivered */
static u64 registered; /* GPUs with events, one bit each */
static u64 warm;       /* GPUs that were initialised in this session, one bit each */

/* The path of a file beside the library. */
static const char *beside(char *path, size_t size, const char *name) {
    Dl_info self;
    dladdr((void *)beside, &self);
    snprintf(path, size - 32, "%s", self.dli_fname);
    strcpy(strrchr(path, '/') + 1, name);
    return path;
}

/* The lines of the file: cut once, so that what is measured with this stand-in is not its own search. */
static struct { const char *key, *value; size_t length; } *lines;
static size_t line_count;

static void cut(char *content) {
    line_count = 0;
    for (char *line = content, *end; *line; line = end) {
        end = line + strcspn(line, "\n");
        if (*end) *end++ = 0;
        size_t length = strcspn(line, " ");
        if (!line[length]) continue;
        lines = realloc(lines, (line_count + 1) * sizeof *lines);
        lines[line_count].key = line;
        lines[line_count].length = length;
        lines[line_count++].value = line + length + 1;
    }
}

static const char *value_of(const char *key) {
    size_t length = strlen(key);
    for (size_t at = 0; at < line_count; at++)
        if (lines[at].length == length && !memcmp(lines[at].key, key, length)) return lines[at].value;
    return NULL;
}

/* Read the file again whenever another file has taken its place. Called with the lock held. A quiet machine stays as
   it is: to look at its file for each value would be a tenth of what an agent at rest is measured to cost. */
static void machine(void) {
    static char path[4096], *content;
    static struct stat seen;
    static int stays;
    struct stat now;
    if (stays) return;
    if (!*path) beside(path, sizeof path, "machine.txt");
    if (stat(path, &now)) {
        line_count = 0, seen.st_ino = 0;
        return;
    }
    if (content && now.st_ino == seen.st_ino && now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec && now.st_mtim.tv_sec == seen.st_mtim.tv_sec) return;
    FILE *file = fopen(path, "r");
    if (!file) return;
    fstat(fileno(file), &seen);
    content = realloc(content, (size_t)seen.st_size + 1);
    content[fread(content, 1, (size_t)seen.st_size, file)] = 0;
    fclose(file);
    cut(content);
    stays = value_of("quiet") != NULL;
}

static const char *lookup(const char *key) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static __thread char value[256];
    pthread_mutex_lock(&lock);
    machine();
    const char *found = value_of(key);
    if (found) {
        snprintf(value, sizeof value, "%s", found);
        found = value;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

static const char *text(const char *format, ...) {
    char key[128];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(key, sizeof key, format, arguments);
    va_end(arguments);
    return lookup(key);
}

static void pause_ms(long ms) {
    struct timespec span = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&span, NULL);
}

/* Say which function hangs, in the file "hangs.txt" beside the library, for a test that waits for this moment. */
static void tell(const char *function) {
    char path[4096];
    FILE *file = fopen(beside(path, sizeof path, "hangs.txt"), "w");
    if (file) fputs(function, file), fclose(file);
}

static struct { const char *function; int calls; } counted[192];

static void count_call(const char *function) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    int at = 0;
    pthread_mutex_lock(&lock);
    while (counted[at].function && strcmp(counted[at].function, function)) at++;
    counted[at].function = function;
    counted[at].calls++;
    pthread_mutex_unlock(&lock);
}

/* How often a function was called in this process; NULL: all but the wait for events. */
int stubCalls(const char *function) {
    int sum = 0;
    for (int at = 0; counted[at].function; at++)
        if (function ? !strcmp(counted[at].function, function) : strcmp(counted[at].function, "nvmlEventSetWait_v2")) sum += counted[at].calls;
    return sum;
}

/* What a function has to answer before it looks at anything; handle: NULL where there is none. */
static int before(const char *function, const void *handle) {
    const char *found;
    count_call(function);
    if ((found = text("hang.%s", function))) {
        tell(function);
        pause_ms(atol(found));
    }
    if (!sessions) return UNINITIALIZED;
    if ((found = lookup("all"))) return atoi(found);
    if ((found = text("fail.%s", function))) return atoi(found);
    if (handle && (found = text("gpu.%d.code", (int)((uintptr_t)handle >> 8 & 0xff)))) return atoi(found);
    return OK;
}

#define START(handle) do { int code_ = before(__func__, handle); if (code_) return code_; } while (0)
#define ROOT(handle) do { START(handle); if (lookup("unprivileged")) return NO_PERMISSION; } while (0)
#define GPU_OF(handle) ((int)((uintptr_t)(handle) >> 8 & 0xff))
#define PART_OF(handle) ((int)((uintptr_t)(handle) & 0xff))
#define HANDLE(kind, gpu, part) ((void *)(uintptr_t)((kind) + ((gpu) << 8) + (part)))

static int copy(char *to, unsigned size, const char *from) {
    if (!from) return NOT_SUPPORTED;
    snprintf(to, size, "%s", from);
    return OK;
}

static int number(const char *from, unsigned *to) {
    if (!from) return NOT_SUPPORTED;
    *to = (unsigned)strtoul(from, NULL, 0);
    return OK;
}

static unsigned or_zero(const char *from) { return from ? (unsigned)strtoul(from, NULL, 0) : 0; }

static u64 bytes(const char *format, int gpu) {
    const char *found = text(format, gpu);
    return found ? strtoull(found, NULL, 0) : 0;
}

/* What the driver keeps, one file for all processes. */
static Live *live(void) {
    static Live *kept;
    char path[4096];
    if (kept) return kept;
    int file = open(beside(path, sizeof path, "live.bin"), O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, sizeof *kept)) abort();
    kept = mmap(NULL, sizeof *kept, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return kept;
}

/* The instances of a GPU that keeps them itself; NULL of one whose instances are written down. */
static LiveGpu *kept(const void *handle) { return text("gpu.%d.live", GPU_OF(handle)) ? &live()->gpu[GPU_OF(handle)] : NULL; }

/* What is answered in place of success. */
static int said(const char *function) { return (int)or_zero(text("lie.%s", function)); }

/* Profile number N: "ID SLICES MEMORY_MIB MOST SIZE START..." */
static int kind_of(const void *device, unsigned constant, Kind *to) {
    const char *found = text("gpu.%d.profile.%u", GPU_OF(device), constant);
    memset(to, 0, sizeof *to);
    to->constant = constant;
    int read = found ? sscanf(found, "%u %u %llu %u %u %u %u %u %u %u %u %u %u", &to->id, &to->slices, &to->memory, &to->most,
        &to->size, to->starts, to->starts + 1, to->starts + 2, to->starts + 3, to->starts + 4, to->starts + 5, to->starts + 6, to->starts + 7) : 0;
    to->places = read > 5 ? (unsigned)read - 5 : 0;
    return read >= 2;
}

static int kind_by_id(const void *device, unsigned id, Kind *to) {
    for (unsigned constant = 0; constant < 64; constant++)
        if (kind_of(device, constant, to) && to->id == id) return 1;
    return 0;
}

/* Whether a process works there; gi -2: anywhere on the GPU. */
static int is_busy(const void *device, int gi, int ci) {
    const char *found;
    for (int n = 0; (found = text("gpu.%d.process.%d", GPU_OF(device), n)); n++) {
        int at_gi = -1, at_ci = -1;
        sscanf(found, "%*d %d %d", &at_gi, &at_ci);
        if (gi == -2 || (at_gi == gi && (ci == -1 || at_ci == ci))) return 1;
    }
    return 0;
}

static int is_held(const void *device) { return is_busy(device, -2, -1) || text("gpu.%d.monitor", GPU_OF(device)); }

/* What nvidia-smi does, called by the tests' own: refused where anybody holds a GPU, a session of NVML included. */
int stubReset(const char *uuids) {
    Live *all = live();
    if (all->sessions) return IN_USE;
    for (int pass = 0; pass < 2; pass++)
        for (int gpu = 0; gpu < 8; gpu++) {
            const char *uuid = text("gpu.%d.uuid", gpu);
            if (!uuid || !strstr(uuids, uuid)) continue;
            LiveGpu *one = kept(HANDLE(GPU, gpu, 0));
            if (!one) return NOT_SUPPORTED;
            if (!pass && (one->persistent || is_held(HANDLE(GPU, gpu, 0)))) return IN_USE;
            if (!pass) continue;
            memset(one->gi, 0, sizeof one->gi);
            memset(one->ci, 0, sizeof one->ci);
            one->current = one->pending;
            one->mode = one->slice = 0;
        }
    return OK;
}

/* What "nvidia-smi compute-policy" does. wanted -1: only look. Returns the slice, or minus the error. */
int stubSlice(const char *uuid, int wanted) {
    for (int gpu = 0; gpu < 8; gpu++) {
        const char *found = text("gpu.%d.uuid", gpu);
        LiveGpu *one = found && !strcmp(found, uuid) ? kept(HANDLE(GPU, gpu, 0)) : NULL;
        if (!one) continue;
        if (!(found = text("gpu.%d.slice", gpu))) return -NOT_SUPPORTED;
        if (wanted >= 0) one->slice = wanted + 1;
        return one->slice ? one->slice - 1 : atoi(found);
    }
    return -NOT_FOUND;
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    unsigned code = or_zero(lookup("init"));
    if (!code) sessions++, live()->sessions++;
    return (int)code;
}

/* Partage's Python calls none of these; NVIDIA's container toolkit does, and our hook. */
int nvmlInit(void) { return nvmlInitWithFlags(0); }
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
const char *nvmlErrorString(int code) { return code ? "an error of the stand-in" : "no error"; }

int nvmlDeviceGetHandleByUUID(const char *uuid, void **to) {
    for (int gpu = 0; gpu < 8; gpu++) {
        const char *found = text("gpu.%d.uuid", gpu);
        size_t length = strlen(uuid);
        if (!found || strncmp(found, uuid, length) || (found[length] && found[length] != ' ')) continue;
        *to = HANDLE(GPU, gpu, 0);
        START(*to);
        return OK;
    }
    return NOT_FOUND;
}

int nvmlShutdown(void) {
    if (!sessions) return UNINITIALIZED;
    if (!--sessions) warm = 0;
    /* Without persistence mode a GPU forgets its settings with its last client. */
    if (!--live()->sessions)
        for (int gpu = 0; gpu < 8; gpu++) {
            LiveGpu *one = kept(HANDLE(GPU, gpu, 0));
            if (one && !one->persistent && !is_held(HANDLE(GPU, gpu, 0))) one->mode = one->slice = 0;
        }
    return OK;
}

int nvmlSystemGetNVMLVersion(char *to, unsigned size) { return copy(to, size, lookup("nvml")); }
int nvmlSystemGetDriverVersion(char *to, unsigned size) { START(NULL); return copy(to, size, lookup("driver")); }
int nvmlSystemGetCudaDriverVersion_v2(int *to) { START(NULL); return number(lookup("cuda"), (unsigned *)to); }
int nvmlDeviceGetCount_v2(unsigned *to) { START(NULL); *to = or_zero(lookup("count")); return OK; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **to) {
    static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
    *to = HANDLE(GPU, (int)index, 0);
    START(*to);
    pthread_mutex_lock(&one_at_a_time);
    const char *found = text("gpu.%u.cold", index);
    if (found && !(warm >> index & 1) && !(kept(*to) && kept(*to)->persistent)) pause_ms(atol(found));
    warm |= 1ull << index;
    pthread_mutex_unlock(&one_at_a_time);
    return OK;
}

int nvmlDeviceGetUUID(void *device, char *to, unsigned size) {
    START(device);
    int is_mig = ((uintptr_t)device & KIND) == MIG;
    if (is_mig && kept(device)) {
        LiveCi *one = &kept(device)->ci[PART_OF(device)];
        if (!one->exists) return NOT_FOUND;
        snprintf(to, size, "MIG-%08x-0000-4000-8000-%012x", one->serial, GPU_OF(device));
        return OK;
    }
    return copy(to, size, is_mig ? text("gpu.%d.mig.%d.uuid", GPU_OF(device), PART_OF(device))
                                 : text("gpu.%d.uuid", GPU_OF(device)));
}

int nvmlDeviceGetPciInfo_v3(void *device, Pci *to) {
    START(device);
    to->device_id = or_zero(text("gpu.%d.device", GPU_OF(device)));
    to->subsystem_id = or_zero(text("gpu.%d.subsystem", GPU_OF(device)));
    return copy(to->bus_id, sizeof to->bus_id, text("gpu.%d.bus", GPU_OF(device)));
}

int nvmlDeviceGetName(void *device, char *to, unsigned size) {
    START(device);
    if (((uintptr_t)device & KIND) != MIG) return copy(to, size, text("gpu.%d.name", GPU_OF(device)));
    if (!kept(device)) return copy(to, size, text("gpu.%d.mig.%d.name", GPU_OF(device), PART_OF(device)));
    const LiveCi *one = &kept(device)->ci[PART_OF(device)];
    const LiveGi *in = &kept(device)->gi[one->gi];
    if (!one->exists) return NOT_FOUND;
    const char *whole = text("gpu.%d.name", GPU_OF(device));
    int written = snprintf(to, size, "%s MIG ", whole ? whole : "");
    if (one->slices != in->slices) written += snprintf(to + written, size - (unsigned)written, "%uc.", one->slices);
    snprintf(to + written, size - (unsigned)written, "%ug.%ugb%s", in->slices, (in->memory + 1023) / 1024, in->profile == 20 ? "+me" : "");
    return OK;
}

int nvmlDeviceGetSerial(void *device, char *to, unsigned size) { START(device); return copy(to, size, text("gpu.%d.serial", GPU_OF(device))); }
int nvmlDeviceGetBoardPartNumber(void *device, char *to, unsigned size) { START(device); return copy(to, size, text("gpu.%d.part", GPU_OF(device))); }
int nvmlDeviceGetVbiosVersion(void *device, char *to, unsigned size) { START(device); return copy(to, size, text("gpu.%d.vbios", GPU_OF(device))); }

int nvmlDeviceGetBrand(void *device, unsigned *to) {
    START(device);
    const char *found = text("gpu.%d.brand", GPU_OF(device));
    if (!found) return NOT_SUPPORTED;
    *to = (unsigned)atoi(found);
    return OK;
}

typedef struct { unsigned version, value; } AddressingMode;

int nvmlDeviceGetAddressingMode(void *device, AddressingMode *to) {
    START(device);
    const char *found = text("gpu.%d.addressing", GPU_OF(device));
    if (to->version != (1u << 24 | sizeof *to)) return INVALID_ARGUMENT;
    if (!found) return NOT_SUPPORTED;
    to->value = (unsigned)atoi(found);
    return OK;
}

/* NUMA nodes, one bit each: "MASK" in the first word. */
int nvmlDeviceGetMemoryAffinity(void *device, unsigned words, unsigned long *to, unsigned scope) {
    START(device);
    const char *found = text("gpu.%d.nodes", GPU_OF(device));
    if (scope || !words) return INVALID_ARGUMENT;
    if (!found) return NOT_SUPPORTED;
    memset(to, 0, words * sizeof *to);
    *to = strtoul(found, NULL, 0);
    return OK;
}

int nvmlDeviceGetMinorNumber(void *device, unsigned *to) { START(device); return number(text("gpu.%d.minor", GPU_OF(device)), to); }
int nvmlDeviceGetArchitecture(void *device, unsigned *to) { START(device); return number(text("gpu.%d.arch", GPU_OF(device)), to); }
int nvmlDeviceGetComputeMode(void *device, unsigned *to) {
    START(device);
    if (kept(device) && kept(device)->mode) return *to = (unsigned)kept(device)->mode - 1, OK;
    return number(text("gpu.%d.mode", GPU_OF(device)), to);
}

int nvmlDeviceSetComputeMode(void *device, unsigned mode) {
    ROOT(device);
    if (!kept(device) || mode == 1 || kept(device)->current) return NOT_SUPPORTED;
    if (mode > 3) return INVALID_ARGUMENT;
    kept(device)->mode = (int)mode + 1;
    return said(__func__);
}

int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
    START(device);
    const char *found = text("gpu.%d.cc", GPU_OF(device));
    return found && sscanf(found, "%d.%d", major, minor) == 2 ? OK : NOT_SUPPORTED;
}

static int mig_memory(void *mig, u64 *total, u64 *used) {
    const char *found = text("gpu.%d.mig.%d.attributes", GPU_OF(mig), PART_OF(mig));
    u64 mib = 0;
    if (!found || sscanf(found, "%*u %llu", &mib) != 1) return NOT_SUPPORTED;
    *total = mib << 20;
    found = text("gpu.%d.mig.%d.used", GPU_OF(mig), PART_OF(mig));
    *used = found ? strtoull(found, NULL, 0) : 0;
    return OK;
}

int nvmlDeviceGetMemoryInfo(void *device, Memory *to) {
    START(device);
    if (((uintptr_t)device & KIND) == MIG) {
        int code = mig_memory(device, &to->total, &to->used);
        to->free = to->total - to->used;
        return code;
    }
    const char *found = text("gpu.%d.memory", GPU_OF(device));
    if (!found) return NOT_SUPPORTED;
    to->total = strtoull(found, NULL, 0);
    to->used = bytes("gpu.%d.used", GPU_OF(device)) + bytes("gpu.%d.reserved", GPU_OF(device));
    to->free = to->total - to->used;
    return OK;
}

/* Source: nvml.h of branch 615. Refuses what it documents, in an order that is this stand-in's own. */
static int limited(void *device, const char *cgroup) {
    char path[4096];
    const char *how = text("gpu.%d.limits", GPU_OF(device));
    int by_kernel = how && !strcmp(how, "dmem");
    if (!how || ((uintptr_t)device & KIND) == MIG || (kept(device) && kept(device)->current)) return NOT_SUPPORTED;
    if (!cgroup) return INVALID_ARGUMENT;
    int directory = open(cgroup, O_RDONLY | O_DIRECTORY);
    if (directory < 0) return OPERATING_SYSTEM;
    close(directory);
    snprintf(path, sizeof path, "%s/dmem.max", cgroup);
    return !by_kernel || !access(path, F_OK) ? OK : NOT_FOUND;
}

int nvmlDeviceSetMemoryLimits_v1(void *device, const SetLimits *limits) {
    ROOT(device);
    char path[4096];
    int code = limits ? limited(device, limits->cgroup) : INVALID_ARGUMENT;
    if (code) return code;
    if (limits->soft > limits->hard || (limits->hard != ~0ull && limits->hard > bytes("gpu.%d.memory", GPU_OF(device)))) return INVALID_ARGUMENT;
    FILE *file = fopen(beside(path, sizeof path, "limits.txt"), "a");
    if (!file) return UNKNOWN;
    fprintf(file, "%d %s %llu %llu\n", GPU_OF(device), limits->cgroup, limits->soft, limits->hard);
    fclose(file);
    return said(__func__);
}

int nvmlDeviceGetMemoryLimits_v1(void *device, GetLimits *limits) {
    START(device);
    char path[4096], cgroup[4096];
    int gpu, code = limits ? limited(device, limits->cgroup) : INVALID_ARGUMENT;
    u64 soft, hard;
    if (code) return code;
    limits->soft = 0, limits->hard = ~0ull;
    const char *name = strrchr(limits->cgroup, '/');
    const char *used = text("gpu.%d.cgroup.%s", GPU_OF(device), name ? name + 1 : limits->cgroup);
    limits->used = used ? strtoull(used, NULL, 0) : 0;
    FILE *file = fopen(beside(path, sizeof path, "limits.txt"), "r");
    while (file && fscanf(file, "%d %4095s %llu %llu", &gpu, cgroup, &soft, &hard) == 4)
        if (gpu == GPU_OF(device) && !strcmp(cgroup, limits->cgroup)) limits->soft = soft, limits->hard = hard;
    if (file) fclose(file);
    return OK;
}

int nvmlDeviceGetMemoryInfo_v2(void *device, Memory2 *to) {
    START(device);
    if (to->version != (2u << 24 | sizeof *to)) return VERSION_MISMATCH;
    to->reserved = 0;
    if (((uintptr_t)device & KIND) == MIG) {
        int code = mig_memory(device, &to->total, &to->used);
        to->free = to->total - to->used;
        return code;
    }
    to->total = bytes("gpu.%d.memory", GPU_OF(device));
    to->used = bytes("gpu.%d.used", GPU_OF(device));
    to->reserved = bytes("gpu.%d.reserved", GPU_OF(device));
    to->free = to->total - to->used - to->reserved;
    return text("gpu.%d.memory", GPU_OF(device)) ? OK : NOT_SUPPORTED;
}

int nvmlDeviceGetFieldValues(void *device, int count, Field *fields) {
    START(device);
    for (int i = 0; i < count; i++) {
        const char *found = text("gpu.%d.field.%u", GPU_OF(device), fields[i].id);
        fields[i].result = found ? OK : NOT_SUPPORTED;
        fields[i].value.ull = found ? strtoull(found, NULL, 0) : 0;
        const char *type = text("gpu.%d.field.%u.type", GPU_OF(device), fields[i].id);
        fields[i].type = type ? atoi(type) : 1;
        if (fields[i].type == 0 && found) fields[i].value.d = strtod(found, NULL);
    }
    return OK;
}

/* MIG mode, 0 where there is none. */
static int mig_mode(void *device, unsigned *current, unsigned *pending) {
    const LiveGpu *one = kept(device);
    if (one) {
        *current = (unsigned)one->current;
        *pending = (unsigned)one->pending;
        return 1;
    }
    const char *found = text("gpu.%d.mig", GPU_OF(device)); /* "CURRENT PENDING" */
    return found && sscanf(found, "%u %u", current, pending) == 2;
}

int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending) {
    START(device);
    return mig_mode(device, current, pending) ? OK : NOT_SUPPORTED;
}

int nvmlDeviceGetGpuFabricInfoV(void *device, Fabric *to) {
    START(device);
    const char *found = text("gpu.%d.fabric", GPU_OF(device)); /* "STATE STATUS" */
    int state = 0;
    unsigned current = 0, pending;
    if (!found || sscanf(found, "%d %d", &state, &to->status) != 2) return NOT_SUPPORTED;
    /* In MIG mode the search for the fabric is suspended: in progress for ever. */
    const char *clique = text("gpu.%d.clique", GPU_OF(device)); /* "BYTE NUMBER": of the cluster, its clique */
    unsigned cluster = 0, number = 0;
    if (clique && sscanf(clique, "%u %u", &cluster, &number) == 2) {
        to->cluster[15] = (uint8_t)cluster;
        to->clique = number;
    }
    to->state = (uint8_t)(state && mig_mode(device, &current, &pending) && current ? 2 : state);
    return OK;
}

int nvmlDeviceSetMigMode(void *device, unsigned mode, unsigned *activation) {
    ROOT(device);
    LiveGpu *one = kept(device);
    if (!one) return NOT_SUPPORTED;
    if (mode > 1) return INVALID_ARGUMENT;
    *activation = OK;
    one->pending = (int)mode;
    if (one->current == one->pending) return said(__func__);
    if (is_held(device)) *activation = IN_USE;
    else if (strcmp(text("gpu.%d.live", GPU_OF(device)), "direct")) *activation = RESET_REQUIRED;
    else {
        memset(one->gi, 0, sizeof one->gi);
        memset(one->ci, 0, sizeof one->ci);
        one->current = one->pending;
    }
    return said(__func__);
}

int nvmlDeviceGetPersistenceMode(void *device, unsigned *to) {
    START(device);
    if (!kept(device)) return NOT_SUPPORTED;
    *to = (unsigned)kept(device)->persistent;
    return OK;
}

int nvmlDeviceSetPersistenceMode(void *device, unsigned mode) {
    ROOT(device);
    if (!kept(device)) return NOT_SUPPORTED;
    kept(device)->persistent = (int)mode;
    return OK;
}

int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *to) {
    START(device);
    const char *found = text("gpu.%d.most", GPU_OF(device)); /* MIG devices; 7 where it is not written */
    *to = found ? (unsigned)atoi(found) : 7;
    return OK;
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **to) {
    START(device);
    *to = HANDLE(MIG, GPU_OF(device), (int)index);
    if (kept(device)) return index < 8 && kept(device)->ci[index].exists ? OK : NOT_FOUND;
    return text("gpu.%d.mig.%u.uuid", GPU_OF(device), index) ? OK : NOT_FOUND;
}

int nvmlDeviceGetGpuInstanceId(void *mig, unsigned *to) { START(mig); if (kept(mig)) return *to = kept(mig)->ci[PART_OF(mig)].gi, OK; return number(text("gpu.%d.mig.%d.gi", GPU_OF(mig), PART_OF(mig)), to); }
int nvmlDeviceGetComputeInstanceId(void *mig, unsigned *to) { START(mig); if (kept(mig)) return *to = kept(mig)->ci[PART_OF(mig)].ci, OK; return number(text("gpu.%d.mig.%d.ci", GPU_OF(mig), PART_OF(mig)), to); }

int nvmlDeviceGetAttributes_v2(void *mig, Attributes *to) {
    START(mig);
    if (kept(mig)) {
        const LiveCi *one = &kept(mig)->ci[PART_OF(mig)];
        to->ci_slices = one->slices;
        to->memory = kept(mig)->gi[one->gi].memory;
        return one->exists ? OK : NOT_FOUND;
    }
    const char *found = text("gpu.%d.mig.%d.attributes", GPU_OF(mig), PART_OF(mig)); /* "SLICES MEMORY_MIB" */
    return found && sscanf(found, "%u %llu", &to->ci_slices, &to->memory) == 2 ? OK : NOT_SUPPORTED;
}

int nvmlDeviceGetGpuInstanceById(void *device, unsigned id, void **to) {
    ROOT(device);
    *to = HANDLE(GI, GPU_OF(device), (int)id);
    if (kept(device)) return id < 16 && kept(device)->gi[id].exists ? OK : NOT_FOUND;
    return text("gpu.%d.gi.%u", GPU_OF(device), id) ? OK : NOT_FOUND;
}

int nvmlGpuInstanceGetInfo(void *instance, GiInfo *to) {
    START(instance);
    if (kept(instance)) {
        const LiveGi *one = &kept(instance)->gi[PART_OF(instance)];
        *to = (GiInfo){HANDLE(GPU, GPU_OF(instance), 0), (unsigned)PART_OF(instance), one->profile, one->start, one->size};
        return one->exists ? OK : NOT_FOUND;
    }
    to->id = (unsigned)PART_OF(instance);
    const char *found = text("gpu.%d.gi.%d", GPU_OF(instance), PART_OF(instance)); /* "PROFILE_ID START SIZE" */
    return found && sscanf(found, "%u %u %u", &to->profile, &to->start, &to->size) == 3 ? OK : NOT_FOUND;
}

/* How many kinds of GPU instances the library knows: one of R525 knows 10. */
static unsigned most_profiles(void) { const char *found = lookup("profiles"); return found ? (unsigned)atoi(found) : 10; }

/* Version 2, with the name: key "gpu.I.profile.N.name". */
int nvmlDeviceGetGpuInstanceProfileInfoV(void *device, unsigned constant, NamedProfile *to) {
    START(device);
    if (constant >= most_profiles()) return INVALID_ARGUMENT;
    const char *name = text("gpu.%d.profile.%u.name", GPU_OF(device), constant);
    if (!name) return VERSION_MISMATCH;
    return copy(to->name, sizeof to->name, name);
}

int nvmlDeviceGetGpuInstanceProfileInfo(void *device, unsigned constant, Profile *to) {
    START(device);
    if (constant >= most_profiles()) return INVALID_ARGUMENT;
    Kind kind;
    if (!kind_of(device, constant, &kind)) return NOT_SUPPORTED;
    to->id = kind.id;
    to->slices = kind.slices;
    to->memory = kind.memory;
    to->rest[0] = kind.most;
    const char *engines = text("gpu.%d.profile.%u.engines", GPU_OF(device), constant); /* "COPY DECODER ENCODER JPEG OFA" */
    if (engines) sscanf(engines, "%u %u %u %u %u", to->rest + 2, to->rest + 3, to->rest + 4, to->rest + 5, to->rest + 6);
    return OK;
}

int nvmlDeviceGetGpuInstancePossiblePlacements_v2(void *device, unsigned id, Place *to, unsigned *count) {
    ROOT(device);
    Kind kind;
    if (!kind_by_id(device, id, &kind)) return INVALID_ARGUMENT;
    if (to && *count < kind.places) return SMALL;
    *count = kind.places;
    for (unsigned i = 0; to && i < kind.places; i++) to[i] = (Place){kind.starts[i], kind.size};
    return OK;
}

int nvmlDeviceGetGpuInstances(void *device, unsigned id, void **to, unsigned *count) {
    ROOT(device);
    Kind kind;
    LiveGpu *one = kept(device);
    *count = 0;
    if (!one) return OK;
    if (!one->current) return NOT_SUPPORTED;
    if (!kind_by_id(device, id, &kind)) return INVALID_ARGUMENT;
    for (int gi = 0; gi < 16; gi++)
        if (one->gi[gi].exists && one->gi[gi].profile == id) to[(*count)++] = HANDLE(GI, GPU_OF(device), gi);
    return OK;
}

int nvmlDeviceCreateGpuInstanceWithPlacement(void *device, unsigned id, const Place *place, void **to) {
    ROOT(device);
    Kind kind;
    LiveGpu *one = kept(device);
    if (!one || !one->current) return NOT_SUPPORTED;
    unsigned same = 0, any = 0, possible = 0;
    if (!kind_by_id(device, id, &kind)) return INVALID_ARGUMENT;
    for (unsigned i = 0; i < kind.places; i++) possible |= place->size == kind.size && kind.starts[i] == place->start;
    if (!possible) return INVALID_ARGUMENT;
    for (int gi = 0; gi < 16; gi++) {
        LiveGi *other = &one->gi[gi];
        if (!other->exists) continue;
        any = 1;
        same += other->profile == id;
        if (other->start < place->start + place->size && place->start < other->start + other->size) return INSUFFICIENT_RESOURCES;
    }
    if (same >= kind.most) return INSUFFICIENT_RESOURCES; /* its engines are used up */
    if (!any && is_busy(device, -1, -1)) return IN_USE;
    /* The id is the number of a half, a quarter, an eighth: the next one at this place has it again. */
    unsigned gi = (8 / place->size) - 1 + place->start / place->size;
    one->gi[gi] = (LiveGi){1, id, place->start, place->size, kind.slices, (unsigned)kind.memory};
    *to = HANDLE(GI, GPU_OF(device), (int)gi);
    return said(__func__);
}

int nvmlGpuInstanceDestroy(void *instance) {
    ROOT(instance);
    LiveGi *one = kept(instance) ? &kept(instance)->gi[PART_OF(instance)] : NULL;
    if (!one || !one->exists) return NOT_FOUND;
    for (int n = 0; n < 8; n++)
        if (kept(instance)->ci[n].exists && (int)kept(instance)->ci[n].gi == PART_OF(instance)) return IN_USE;
    one->exists = 0;
    return said(__func__);
}

static const unsigned compute_slices[] = {1, 2, 3, 4, 7, 8, 6};

static unsigned slices_used(void *instance) {
    unsigned used = 0;
    for (int n = 0; n < 8; n++)
        if (kept(instance)->ci[n].exists && (int)kept(instance)->ci[n].gi == PART_OF(instance)) used += kept(instance)->ci[n].slices;
    return used;
}

int nvmlGpuInstanceGetComputeInstanceProfileInfo(void *instance, unsigned constant, unsigned engine, ComputeProfile *to) {
    START(instance);
    if (constant > 7 || engine) return INVALID_ARGUMENT;
    if (!kept(instance)) return NOT_SUPPORTED;
    LiveGi *one = &kept(instance)->gi[PART_OF(instance)];
    if (!one->exists) return NOT_FOUND;
    if (constant == 7 || compute_slices[constant] > one->slices) return NOT_SUPPORTED;
    to->id = constant;
    to->slices = compute_slices[constant];
    return OK;
}

int nvmlGpuInstanceCreateComputeInstance(void *instance, unsigned id, void **to) {
    ROOT(instance);
    LiveGpu *gpu = kept(instance);
    if (!gpu || !gpu->gi[PART_OF(instance)].exists) return NOT_FOUND;
    if (id > 4 || compute_slices[id] > gpu->gi[PART_OF(instance)].slices) return INVALID_ARGUMENT;
    if (slices_used(instance) + compute_slices[id] > gpu->gi[PART_OF(instance)].slices) return INSUFFICIENT_RESOURCES;
    unsigned taken = 0, ci = 0;
    int slot = 0;
    for (int n = 0; n < 8; n++)
        if (gpu->ci[n].exists && (int)gpu->ci[n].gi == PART_OF(instance)) taken |= 1u << gpu->ci[n].ci;
    while (taken >> ci & 1) ci++;
    while (gpu->ci[slot].exists) slot++;
    gpu->ci[slot] = (LiveCi){1, (unsigned)PART_OF(instance), ci, compute_slices[id], (unsigned)++live()->serial};
    *to = HANDLE(CI, GPU_OF(instance), slot);
    return said(__func__);
}

int nvmlGpuInstanceGetComputeInstances(void *instance, unsigned id, void **to, unsigned *count) {
    START(instance);
    *count = 0;
    if (!kept(instance)) return NOT_SUPPORTED;
    for (int n = 0; n < 8; n++) {
        LiveCi *one = &kept(instance)->ci[n];
        if (one->exists && (int)one->gi == PART_OF(instance) && one->slices == compute_slices[id])
            to[(*count)++] = HANDLE(CI, GPU_OF(instance), n);
    }
    return OK;
}

int nvmlComputeInstanceGetInfo_v2(void *compute, CiInfo *to) {
    START(compute);
    const LiveCi *one = &kept(compute)->ci[PART_OF(compute)];
    if (!one->exists) return NOT_FOUND;
    /* Drivers hand out the MIG device; the header promises its GPU, and "parent" has it so. */
    int kind = lookup("parent") ? GPU : MIG;
    to->device = HANDLE(kind, GPU_OF(compute), kind == GPU ? 0 : PART_OF(compute));
    to->instance = HANDLE(GI, GPU_OF(compute), (int)one->gi);
    to->id = one->ci;
    return OK;
}

int nvmlComputeInstanceDestroy(void *compute) {
    ROOT(compute);
    LiveCi *one = &kept(compute)->ci[PART_OF(compute)];
    if (!one->exists) return NOT_FOUND;
    if (is_busy(compute, (int)one->gi, (int)one->ci)) return IN_USE;
    one->exists = 0;
    return said(__func__);
}

/* Bytes of a row in lists of version 3: drivers 535.43 to 535.86 have one more number in it. */
static size_t wide_row(void) {
    const char *driver = lookup("driver");
    int major = 0, minor = 0;
    if (driver) sscanf(driver, "%d.%d", &major, &minor);
    return major == 535 && minor >= 43 && minor < 98 ? sizeof(Process) + sizeof(u64) : sizeof(Process);
}

/* Of a GPU all of its processes (for root, if it is in MIG mode), of a MIG device its own. */
static int processes(void *device, unsigned *count, void *to, size_t row, char kind) {
    unsigned room = *count, found = 0, current = 0, pending;
    const char *line, *odd;
    if (((uintptr_t)device & KIND) == GPU && lookup("unprivileged") && mig_mode(device, &current, &pending) && current) return NO_PERMISSION;
    for (int n = 0; (line = text("gpu.%d.process.%d", GPU_OF(device), n)); n++) {
        Process one = {0, 0, 0, 0};
        int gi = -1, ci = -1;
        long long used = -1;
        char kinds[8] = "C";
        sscanf(line, "%u %d %d %lld %7s", &one.pid, &gi, &ci, &used, kinds);
        if (!strchr(kinds, kind)) continue;
        if (((uintptr_t)device & KIND) == GPU && gi >= 0 && (odd = lookup("lists"))) {
            if (!strcmp(odd, "split")) continue;
            gi = ci = -1;
        }
        one.memory = (u64)used;
        one.gi = (unsigned)gi;
        one.ci = (unsigned)ci;
        if (((uintptr_t)device & KIND) == MIG && kept(device)) {
            LiveCi *part = &kept(device)->ci[PART_OF(device)];
            if (part->gi != one.gi || part->ci != one.ci) continue;
        }
        if (to && found < room) {
            memset((char *)to + found * row, 0, row);
            memcpy((char *)to + found * row, &one, sizeof one);
        }
        found++;
    }
    *count = found;
    return found > room ? SMALL : OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, void *to) { START(device); return processes(device, count, to, wide_row(), 'C'); }
int nvmlDeviceGetComputeRunningProcesses_v2(void *device, unsigned *count, void *to) { START(device); return processes(device, count, to, sizeof(Process), 'C'); }
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned *count, void *to) { START(device); return processes(device, count, to, wide_row(), 'G'); }
int nvmlDeviceGetGraphicsRunningProcesses_v2(void *device, unsigned *count, void *to) { START(device); return processes(device, count, to, sizeof(Process), 'G'); }
int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *device, unsigned *count, void *to) { START(device); return processes(device, count, to, wide_row(), 'M'); }
int nvmlDeviceGetMPSComputeRunningProcesses_v2(void *device, unsigned *count, void *to) { START(device); return processes(device, count, to, sizeof(Process), 'M'); }

/* --- what is measured --- */

typedef struct { unsigned gpu, memory; } Rates;
typedef struct { unsigned pid; u64 stamp; unsigned sm, memory, encoder, decoder; } Busy;
typedef struct { void *device; int gi; } GpmSample;
typedef struct { unsigned id; int result; double value; const char *names[3]; } GpmMetric;
typedef struct { unsigned version, count; GpmSample *first, *second; GpmMetric metrics[]; } GpmAsked;

static int in_mig(void *device) {
    unsigned current = 0, pending;
    return ((uintptr_t)device & KIND) == MIG || (mig_mode(device, &current, &pending) && current);
}

int nvmlDeviceGetUtilizationRates(void *device, Rates *to) {
    START(device);
    const char *found = in_mig(device) ? NULL : text("gpu.%d.util", GPU_OF(device));
    return found && sscanf(found, "%u %u", &to->gpu, &to->memory) == 2 ? OK : NOT_SUPPORTED;
}

int nvmlDeviceGetEncoderUtilization(void *device, unsigned *to, unsigned *period) { START(device); *period = 100000; return number(text("gpu.%d.encoder", GPU_OF(device)), to); }
int nvmlDeviceGetDecoderUtilization(void *device, unsigned *to, unsigned *period) { START(device); *period = 100000; return number(text("gpu.%d.decoder", GPU_OF(device)), to); }
int nvmlDeviceGetPowerUsage(void *device, unsigned *to) { START(device); return number(text("gpu.%d.power", GPU_OF(device)), to); }
int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *to) { START(device); return number(text("gpu.%d.limit", GPU_OF(device)), to); }
int nvmlDeviceGetClockInfo(void *device, unsigned type, unsigned *to) { START(device); return number(text("gpu.%d.clock.%u", GPU_OF(device), type), to); }
int nvmlDeviceGetTemperature(void *device, unsigned sensor, unsigned *to) { START(device); return sensor ? INVALID_ARGUMENT : number(text("gpu.%d.celsius", GPU_OF(device)), to); }

int nvmlDeviceGetTotalEnergyConsumption(void *device, u64 *to) {
    START(device);
    *to = bytes("gpu.%d.energy", GPU_OF(device));
    return text("gpu.%d.energy", GPU_OF(device)) ? OK : NOT_SUPPORTED;
}

/* The old name; a driver since R535 has both. */
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, u64 *to) {
    START(device);
    *to = bytes("gpu.%d.throttle", GPU_OF(device));
    return text("gpu.%d.throttle", GPU_OF(device)) ? OK : NOT_SUPPORTED;
}

int nvmlDeviceGetProcessUtilization(void *device, Busy *to, unsigned *count, u64 since) {
    START(device);
    struct timespec now;
    unsigned found = 0, room = *count;
    const char *line;
    if (in_mig(device)) return NOT_SUPPORTED;
    clock_gettime(CLOCK_REALTIME, &now);
    for (int n = 0; (line = text("gpu.%d.busy.%d", GPU_OF(device), n)); n++) {
        Busy one = {0};
        long age_ms = 0;
        sscanf(line, "%u %u %u %u %u %ld", &one.pid, &one.sm, &one.memory, &one.encoder, &one.decoder, &age_ms);
        one.stamp = (u64)now.tv_sec * 1000000 + (u64)now.tv_nsec / 1000 - (u64)age_ms * 1000;
        if (one.stamp < since && !text("gpu.%d.stale", GPU_OF(device))) continue; /* stale: the driver gives old rows, too */
        if (to && found < room) to[found] = one;
        found++;
    }
    *count = found;
    return !found ? (text("gpu.%d.util", GPU_OF(device)) ? NOT_FOUND : NOT_SUPPORTED) : found > room ? SMALL : OK;
}

static int gpm_samples; /* how many are not freed */
int stubGpmSamples(void) { return gpm_samples; }

int nvmlGpmQueryDeviceSupport(void *device, unsigned *to) {
    START(device);
    to[1] = text("gpu.%d.gpm", GPU_OF(device)) != NULL;
    return OK;
}

int nvmlGpmSampleAlloc(GpmSample **to) { START(NULL); *to = calloc(1, sizeof **to); gpm_samples++; return OK; }
int nvmlGpmSampleFree(GpmSample *sample) { START(NULL); free(sample); gpm_samples--; return OK; }
int nvmlGpmSampleGet(void *device, GpmSample *to) { START(device); *to = (GpmSample){device, -1}; return OK; }

int nvmlGpmMigSampleGet(void *device, unsigned gi, GpmSample *to) {
    START(device);
    *to = (GpmSample){device, (int)gi};
    return text("gpu.%d.gi.%u", GPU_OF(device), gi) ? OK : NOT_FOUND;
}

int nvmlGpmMetricsGet(GpmAsked *asked) {
    START(NULL);
    if (asked->version != 1 || !asked->first || !asked->second || asked->first == asked->second) return INVALID_ARGUMENT;
    for (unsigned i = 0; i < asked->count; i++) {
        GpmMetric *one = &asked->metrics[i];
        GpmSample *of = asked->second;
        const char *found = of->gi < 0 ? text("gpu.%d.gpm.%u", GPU_OF(of->device), one->id) : text("gpu.%d.gi.%d.gpm.%u", GPU_OF(of->device), of->gi, one->id);
        one->result = found ? OK : NOT_SUPPORTED;
        one->value = found ? strtod(found, NULL) : 0;
    }
    return OK;
}

int nvmlDeviceGetNvLinkState(void *device, unsigned link, unsigned *active) {
    START(device);
    if (link >= 18) return INVALID_ARGUMENT;
    *active = text("gpu.%d.link.%u", GPU_OF(device), link) != NULL;
    return OK;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned link, Pci *to) {
    START(device);
    return copy(to->bus_id, sizeof to->bus_id, text("gpu.%d.link.%u", GPU_OF(device), link));
}

int nvmlDeviceGetNvLinkRemoteDeviceType(void *device, unsigned link, unsigned *to) {
    START(device);
    return number(text("gpu.%d.link.%u.type", GPU_OF(device), link), to);
}

int nvmlDeviceGetTopologyCommonAncestor(void *a, void *b, unsigned *to) {
    START(a);
    START(b);
    return number(text("path.%d.%d", GPU_OF(a), GPU_OF(b)), to);
}

int nvmlDeviceGetSupportedEventTypes(void *device, u64 *to) {
    START(device);
    *to = or_zero(text("gpu.%d.events", GPU_OF(device)));
    return OK;
}

int nvmlEventSetCreate(void **to) {
    START(NULL);
    while (text("event.%d", next_event)) next_event++; /* no backlog */
    registered = 0;
    *to = &registered;
    return OK;
}

int nvmlDeviceRegisterEvents(void *device, u64 mask, void *set) {
    START(device);
    (void)set;
    if (mask & ~(u64)or_zero(text("gpu.%d.events", GPU_OF(device)))) return NOT_SUPPORTED;
    registered |= 1ull << GPU_OF(device);
    return OK;
}

int nvmlEventSetFree(void *set) { (void)set; return OK; }

int nvmlEventSetWait_v2(void *set, Event *to, unsigned timeout_ms) {
    (void)set;
    if (lookup("quiet")) return pause_ms(timeout_ms), TIMED_OUT; /* as a driver without news: no look in between */
    for (unsigned waited = 0; waited <= timeout_ms; waited += 5, pause_ms(5)) {
        START(NULL);
        for (const char *found; (found = text("event.%d", next_event)); next_event++) {
            int gpu, gi, ci;
            sscanf(found, "%d %llx %llu %d %d", &gpu, &to->type, &to->data, &gi, &ci);
            if (!(registered >> gpu & 1)) continue;
            to->device = HANDLE(GPU, gpu, 0);
            to->gi = (unsigned)gi;
            to->ci = (unsigned)ci;
            next_event++;
            return OK;
        }
    }
    return TIMED_OUT;
}
