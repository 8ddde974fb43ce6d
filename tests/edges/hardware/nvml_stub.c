/* A stand-in for libnvidia-ml.so.1: answers from the text file "machine.txt" beside the library, which is read
 * anew when it changes, so that a test can change the node while it is being looked at. A line is "key value".
 *
 *   init CODE            what nvmlInit answers          all CODE        what every other call answers
 *   fail.FUNCTION CODE   what one function answers      hang.FUNCTION MILLISECONDS
 *   gpu.I.code CODE      the GPU is lost (15), ...      event.N "GPU TYPE DATA GI CI", -1: none
 *
 * The others are named where they are read. A key that is missing means "not supported".
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TIMED_OUT = 10 };
enum { GPU = 0x10000, MIG = 0x20000, GI = 0x30000, KIND = 0xf0000 };

typedef unsigned long long u64;
typedef struct {
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} Pci;
typedef struct { u64 total, free, used; } Memory;
typedef struct {
    uint32_t id, scope;
    int64_t timestamp, latency;
    int type, result;
    union { unsigned ui; u64 ull; } value;
} Field;
typedef struct { unsigned sm, copy, decoder, encoder, jpeg, ofa, gi_slices, ci_slices; u64 memory; } Attributes;
typedef struct { void *device; unsigned id, profile, start, size; } GiInfo;
typedef struct { unsigned id, p2p, slices, rest[7]; u64 memory; } Profile;
typedef struct { void *device; u64 type, data; unsigned gi, ci; } Event;
typedef struct { unsigned version; uint8_t cluster[16]; int status; uint32_t clique; uint8_t state; uint32_t health; } Fabric;

static int sessions;   /* how often nvmlInit was called and not yet undone */
static int next_event; /* the first event that was not delivered */
static u64 registered; /* GPUs with events, one bit each */

/* The file's text, read again whenever another file has taken its place. Called with the lock held. */
static const char *machine(void) {
    static char path[4096], *content;
    static struct stat seen;
    struct stat now;
    if (!*path) {
        Dl_info self;
        dladdr((void *)machine, &self);
        snprintf(path, sizeof path - 16, "%s", self.dli_fname);
        strcpy(strrchr(path, '/') + 1, "machine.txt");
    }
    if (stat(path, &now)) return "";
    if (content && now.st_ino == seen.st_ino && now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec && now.st_mtim.tv_sec == seen.st_mtim.tv_sec) return content;
    FILE *file = fopen(path, "r");
    if (!file) return "";
    fstat(fileno(file), &seen);
    content = realloc(content, (size_t)seen.st_size + 1);
    content[fread(content, 1, (size_t)seen.st_size, file)] = 0;
    fclose(file);
    return content;
}

static const char *lookup(const char *key) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static __thread char value[256];
    size_t length = strlen(key);
    const char *found = NULL;
    pthread_mutex_lock(&lock);
    for (const char *line = machine(); line && *line && !found; line = strchr(line, '\n'), line = line ? line + 1 : NULL)
        if (!strncmp(line, key, length) && line[length] == ' ') {
            snprintf(value, sizeof value, "%.*s", (int)strcspn(line + length + 1, "\n"), line + length + 1);
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

/* What a function has to answer before it looks at anything; handle: NULL where there is none. */
static int before(const char *function, const void *handle) {
    const char *found;
    if ((found = text("hang.%s", function))) pause_ms(atol(found));
    if (!sessions) return UNINITIALIZED;
    if ((found = lookup("all"))) return atoi(found);
    if ((found = text("fail.%s", function))) return atoi(found);
    if (handle && (found = text("gpu.%d.code", (int)((uintptr_t)handle >> 8 & 0xff)))) return atoi(found);
    return OK;
}

#define START(handle) do { int code_ = before(__func__, handle); if (code_) return code_; } while (0)
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

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    unsigned code = or_zero(lookup("init"));
    if (!code) sessions++;
    return (int)code;
}

int nvmlShutdown(void) {
    if (!sessions) return UNINITIALIZED;
    sessions--;
    return OK;
}

int nvmlSystemGetNVMLVersion(char *to, unsigned size) { return copy(to, size, lookup("nvml")); }
int nvmlSystemGetDriverVersion(char *to, unsigned size) { START(NULL); return copy(to, size, lookup("driver")); }
int nvmlSystemGetCudaDriverVersion_v2(int *to) { START(NULL); return number(lookup("cuda"), (unsigned *)to); }
int nvmlDeviceGetCount_v2(unsigned *to) { START(NULL); *to = or_zero(lookup("count")); return OK; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **to) {
    *to = HANDLE(GPU, (int)index, 0);
    START(*to);
    return OK;
}

int nvmlDeviceGetUUID(void *device, char *to, unsigned size) {
    START(device);
    int is_mig = ((uintptr_t)device & KIND) == MIG;
    return copy(to, size, is_mig ? text("gpu.%d.mig.%d.uuid", GPU_OF(device), PART_OF(device))
                                 : text("gpu.%d.uuid", GPU_OF(device)));
}

int nvmlDeviceGetPciInfo_v3(void *device, Pci *to) {
    START(device);
    to->device_id = or_zero(text("gpu.%d.device", GPU_OF(device)));
    return copy(to->bus_id, sizeof to->bus_id, text("gpu.%d.bus", GPU_OF(device)));
}

int nvmlDeviceGetName(void *device, char *to, unsigned size) {
    START(device);
    return copy(to, size, text("gpu.%d.name", GPU_OF(device)));
}

int nvmlDeviceGetMinorNumber(void *device, unsigned *to) { START(device); return number(text("gpu.%d.minor", GPU_OF(device)), to); }
int nvmlDeviceGetArchitecture(void *device, unsigned *to) { START(device); return number(text("gpu.%d.arch", GPU_OF(device)), to); }
int nvmlDeviceGetComputeMode(void *device, unsigned *to) { START(device); return number(text("gpu.%d.mode", GPU_OF(device)), to); }

int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
    START(device);
    const char *found = text("gpu.%d.cc", GPU_OF(device));
    return found && sscanf(found, "%d.%d", major, minor) == 2 ? OK : NOT_SUPPORTED;
}

int nvmlDeviceGetMemoryInfo(void *device, Memory *to) {
    START(device);
    const char *found = text("gpu.%d.memory", GPU_OF(device));
    if (!found) return NOT_SUPPORTED;
    to->total = strtoull(found, NULL, 0);
    return OK;
}

int nvmlDeviceGetFieldValues(void *device, int count, Field *fields) {
    START(device);
    for (int i = 0; i < count; i++) {
        const char *found = text("gpu.%d.field.%u", GPU_OF(device), fields[i].id);
        fields[i].result = found ? OK : NOT_SUPPORTED;
        fields[i].value.ull = or_zero(found);
    }
    return OK;
}

int nvmlDeviceGetGpuFabricInfoV(void *device, Fabric *to) {
    START(device);
    const char *found = text("gpu.%d.fabric", GPU_OF(device)); /* "STATE STATUS" */
    int state = 0;
    if (!found || sscanf(found, "%d %d", &state, &to->status) != 2) return NOT_SUPPORTED;
    to->state = (uint8_t)state;
    return OK;
}

int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending) {
    START(device);
    const char *found = text("gpu.%d.mig", GPU_OF(device)); /* "CURRENT PENDING" */
    return found && sscanf(found, "%u %u", current, pending) == 2 ? OK : NOT_SUPPORTED;
}

int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *to) { START(device); *to = 7; return OK; }

int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **to) {
    START(device);
    *to = HANDLE(MIG, GPU_OF(device), (int)index);
    return text("gpu.%d.mig.%u.uuid", GPU_OF(device), index) ? OK : NOT_FOUND;
}

int nvmlDeviceGetGpuInstanceId(void *mig, unsigned *to) { START(mig); return number(text("gpu.%d.mig.%d.gi", GPU_OF(mig), PART_OF(mig)), to); }
int nvmlDeviceGetComputeInstanceId(void *mig, unsigned *to) { START(mig); return number(text("gpu.%d.mig.%d.ci", GPU_OF(mig), PART_OF(mig)), to); }

int nvmlDeviceGetAttributes_v2(void *mig, Attributes *to) {
    START(mig);
    const char *found = text("gpu.%d.mig.%d.attributes", GPU_OF(mig), PART_OF(mig)); /* "SLICES MEMORY_MIB" */
    return found && sscanf(found, "%u %llu", &to->ci_slices, &to->memory) == 2 ? OK : NOT_SUPPORTED;
}

int nvmlDeviceGetGpuInstanceById(void *device, unsigned id, void **to) {
    START(device);
    *to = HANDLE(GI, GPU_OF(device), (int)id);
    return text("gpu.%d.gi.%u", GPU_OF(device), id) ? OK : NOT_FOUND;
}

int nvmlGpuInstanceGetInfo(void *instance, GiInfo *to) {
    START(instance);
    const char *found = text("gpu.%d.gi.%d", GPU_OF(instance), PART_OF(instance)); /* "PROFILE_ID START SIZE" */
    return found && sscanf(found, "%u %u %u", &to->profile, &to->start, &to->size) == 3 ? OK : NOT_FOUND;
}

int nvmlDeviceGetGpuInstanceProfileInfo(void *device, unsigned constant, Profile *to) {
    START(device);
    if (constant > 9) return INVALID_ARGUMENT; /* a library of R525 knows no more */
    const char *found = text("gpu.%d.profile.%u", GPU_OF(device), constant); /* "ID SLICES" */
    return found && sscanf(found, "%u %u", &to->id, &to->slices) == 2 ? OK : NOT_SUPPORTED;
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
