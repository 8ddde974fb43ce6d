/* partage_limits.so: the driver's memory limits of a job of Slurm, in force before the first instruction of its tasks.
 *
 * A SPANK plugin. In plugstack.conf, one line:
 *
 *   required /usr/lib/partage/partage_limits.so [run-dir=DIR] [hook=PROGRAM] [driver-root=DIR]
 *
 * slurmstepd calls it as root for each task, after it has put the task into its cgroup and before the task may begin. The prolog has written
 * DIR/jobs/JOB.limits (src/partage/slurm/text/limits.py): a line "1 job" or "1 job task", which says whose cgroup is limited,
 * and a line UUID=BYTES for each GPU. No such file: the job has no limits, and nothing is done. The plugin has the hook set them
 * and read them back, in a process of its own, as the driver's library does not belong into slurmstepd; then it makes DIR/jobs/JOB.held.
 * Whatever goes wrong is one sentence in the job's output, and its tasks end before they have begun. The node stays in service.
 *
 * The limit is that of the job's cgroup: a job can have many steps, which together have its share. "task": also that of the cgroup in
 * which the task is, so that programs are shown the limit as the memory of the GPU. Only where limits nest: else the inner one alone would count.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <slurm/spank.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

SPANK_PLUGIN(partage_limits, 1)

enum { FILE_BYTES = 16 << 10, CGROUP_BYTES = 64 << 10, MOST_WORDS = 80, SENTENCE_BYTES = 2048, PATIENCE_MS = 60000 };

/* slurmstepd goes on after a positive answer, also after ESPANK_ERROR (seen on 22.05.8). */
enum { REFUSED = -1 };

static const char *run_dir = "/run/partage", *hook = "/usr/lib/partage/partage-limit-hook", *driver_root = "/";
static char sentence[SENTENCE_BYTES];

/* What slurmstepd found, shared with the tasks that it forks: how many may begin, and why one may not. */
typedef struct { int good, bad; char why[SENTENCE_BYTES]; } Verdict;
static Verdict *verdict;

typedef struct { char text[FILE_BYTES]; char *gpus[MOST_WORDS]; int of_task; } Limits;

/* Keep what went wrong; the answer is 0. */
__attribute__((format(printf, 1, 2))) static int wrong(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    for (char *at = sentence; *at; at++)
        if (*at < ' ' || *at > '~') *at = '?';
    return 0;
}

/* All of an open file, closed with a zero; at most size - 1 bytes of it, else the answer is size. */
static size_t read_all(int file, char *to, size_t size) {
    size_t length = 0;
    while (length < size) {
        ssize_t got = read(file, to + length, size - length);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        length += (size_t)got;
    }
    if (length < size) to[length] = 0;
    return length;
}

static int is_of_root(int file, mode_t kind) {
    struct stat found;
    return !fstat(file, &found) && (found.st_mode & S_IFMT) == kind && found.st_uid == 0 && !(found.st_mode & 022);
}

/* The path of a process's cgroup of version 2; NULL: it has none. to: CGROUP_BYTES. */
static char *cgroup_of(pid_t pid, char *to) {
    char name[64];
    snprintf(name, sizeof name, "/proc/%ld/cgroup", (long)pid);
    int file = open(name, O_RDONLY | O_CLOEXEC);
    size_t length = file < 0 ? 0 : read_all(file, to, CGROUP_BYTES);
    if (file >= 0) close(file);
    if (!length || length == CGROUP_BYTES) return NULL;
    for (char *line = to; *line; line += strcspn(line, "\n") + (line[strcspn(line, "\n")] != 0))
        if (!strncmp(line, "0::/", 4)) {
            line[strcspn(line, "\n")] = 0;
            return line + 3;
        }
    return NULL;
}

/* Whether this part of a path is a job's: "job_71", whose number is kept, or since 26.05 its SLUID, "s5K1KKYAYG5D00". */
static int is_job(const char *part, size_t length, unsigned *job) {
    char *end;
    if (length == 14 && *part == 's') return strspn(part + 1, "0123456789ABCDEFGHJKMNPQRSTVWXYZ") == 13;
    if (length < 5 || strncmp(part, "job_", 4) || part[4] < '0' || part[4] > '9') return 0;
    unsigned long found = strtoul(part + 4, &end, 10);
    *job = end == part + length && found && found <= UINT_MAX ? (unsigned)found : 0;
    return *job != 0;
}

/* Where the job's part of a path ends: ".../job_71" of ".../job_71/step_0/user/task_0". NULL: it is no step's. */
static char *end_of_job(char *path, unsigned *job) {
    for (char *part = path, *end; (end = strchr(part + 1, '/')); part = end)
        if (!strncmp(end, "/step_", 6) && is_job(part + 1, (size_t)(end - part - 1), job)) return end;
    return NULL;
}

/* --- what the prolog has written -------------------------------------------------------------- */

/* The directory of the records; -1: there is none, and *sentence says why if that is wrong. */
static int open_records(void) {
    char path[PATH_MAX];
    if (*run_dir != '/' || (size_t)snprintf(path, sizeof path, "%s/jobs", run_dir) >= sizeof path) return wrong("run-dir=%s is no directory", run_dir) - 1;
    int directory = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (directory < 0 && errno != ENOENT) return wrong("%s cannot be read: %s", path, strerror(errno)) - 1;
    if (directory >= 0 && !is_of_root(directory, S_IFDIR)) {
        close(directory);
        return wrong("%s is not a directory that root alone can write to", path) - 1;
    }
    return directory;
}

/* 0: the job has none, or *sentence says what is wrong. */
static int read_limits(int directory, unsigned job, Limits *to) {
    char name[32], *rest, *line;
    snprintf(name, sizeof name, "%u.limits", job);
    int file = openat(directory, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (file < 0) return errno == ENOENT ? 0 : wrong("%s/jobs/%s cannot be read: %s", run_dir, name, strerror(errno));
    int ours = is_of_root(file, S_IFREG);
    size_t length = ours ? read_all(file, to->text, sizeof to->text) : 0;
    close(file);
    if (!ours) return wrong("%s/jobs/%s is not a file that root alone can write to", run_dir, name);
    int count = 0;
    line = length && length < sizeof to->text && strlen(to->text) == length ? strtok_r(to->text, "\n", &rest) : NULL;
    to->of_task = line && !strcmp(line, "1 job task");
    if (line && (to->of_task || !strcmp(line, "1 job")))
        while (count < MOST_WORDS - 1 && (line = strtok_r(NULL, "\n", &rest))) to->gpus[count++] = line;
    to->gpus[count] = NULL;
    if (!count || count == MOST_WORDS - 1) return wrong("%s/jobs/%s is damaged, or of another version of Partage", run_dir, name);
    return 1;
}

/* --- the hook --------------------------------------------------------------------------------- */

static long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Wait for its end, with what it says; kill it after PATIENCE_MS. The answer is its status of waitpid. */
static int wait_for(pid_t program, int said, char *to, size_t size) {
    size_t length = 0;
    long end = now_ms() + PATIENCE_MS;
    int status = 0;
    for (;;) {
        struct pollfd watched = {said, POLLIN, 0};
        long left = end - now_ms();
        int news = left > 0 ? poll(&watched, 1, (int)left) : 0;
        if (news < 0 && errno == EINTR) continue;
        if (news <= 0) {
            kill(program, SIGKILL);
            break;
        }
        ssize_t got = read(said, to + length, size - 1 - length);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        length += (size_t)got;
    }
    to[length] = 0;
    while (waitpid(program, &status, 0) < 0 && errno == EINTR) {}
    return status;
}

/* Whether the limits of this cgroup are set; else *sentence says why not. */
static int set_limits(const char *cgroup, const Limits *limits) {
    static char *const nothing[] = {"LC_ALL=C", NULL};
    char root[PATH_MAX], said[SENTENCE_BYTES], *words[MOST_WORDS + 8] = {"partage-limit-hook", "cgroup", root, (char *)cgroup};
    int ends[2], count = 4, status = 0;
    snprintf(root, sizeof root, "--driver-root=%s", driver_root);
    for (char *const *gpu = limits->gpus; *gpu; gpu++) words[count++] = *gpu;
    if (pipe2(ends, O_CLOEXEC)) return wrong("no pipe: %s", strerror(errno));
    posix_spawn_file_actions_t files;
    posix_spawnattr_t how;
    sigset_t none, all;
    pid_t program;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_adddup2(&files, ends[1], 2);
    posix_spawnattr_init(&how);
    posix_spawnattr_setsigmask(&how, &none);
    posix_spawnattr_setsigdefault(&how, &all);
    posix_spawnattr_setflags(&how, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    int error = posix_spawn(&program, hook, &files, &how, words, nothing);
    posix_spawnattr_destroy(&how);
    posix_spawn_file_actions_destroy(&files);
    close(ends[1]);
    if (!error) status = wait_for(program, ends[0], said, sizeof said);
    close(ends[0]);
    if (error) return wrong("%s cannot be started: %s", hook, strerror(error));
    if (WIFEXITED(status) && !WEXITSTATUS(status)) return 1;
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) return wrong("%s was killed: it may take %d s", hook, PATIENCE_MS / 1000);
    said[strcspn(said, "\n")] = 0;
    const char *text = strncmp(said, "partage-limit-hook: ", 20) ? said : said + 20;
    return wrong("%s", *text ? text : "the hook failed and does not say why");
}

/* --- SPANK ------------------------------------------------------------------------------------ */

static int read_options(int count, char **words) {
    static const struct { const char *name; const char **value; } known[] = {{"run-dir=", &run_dir}, {"hook=", &hook}, {"driver-root=", &driver_root}};
    for (int at = 0; at < count; at++) {
        size_t option = 0;
        while (option < 3 && strncmp(words[at], known[option].name, strlen(known[option].name))) option++;
        if (option == 3) return wrong("plugstack.conf says '%.64s', which partage_limits.so does not know", words[at]);
        *known[option].value = words[at] + strlen(known[option].name);
    }
    return 1;
}

/* 1: the task may begin. */
static int limit(spank_t spank, pid_t task) {
    static char own[CGROUP_BYTES], tasks[CGROUP_BYTES], done_job[CGROUP_BYTES], done_task[CGROUP_BYTES];
    static Limits limits;
    unsigned job = 0;
    char *path = cgroup_of(getpid(), own), *end = path ? end_of_job(path, &job) : NULL, held[32];
    if (!job && spank_get_item(spank, S_JOB_ID, &job) != ESPANK_SUCCESS) return wrong("Slurm does not say which job this is");
    int directory = open_records(), found = directory < 0 ? 0 : read_limits(directory, job, &limits);
    if (!found) {
        if (directory >= 0) close(directory);
        return !*sentence;
    }
    int good = end ? 1 : wrong("the step is in no cgroup of version 2: write CgroupPlugin=cgroup/v2 and ProctrackType=proctrack/cgroup");
    if (good) *end = 0;
    if (good && strcmp(path, done_job) && (good = set_limits(path, &limits))) strcpy(done_job, path);
    if (good && limits.of_task && task > 0) {
        char *leaf = cgroup_of(task, tasks);
        size_t length = strlen(path);
        if (!leaf || strncmp(leaf, path, length) || leaf[length] != '/') good = wrong("the task is not in the cgroup of its job, %s", path);
        if (good && strcmp(leaf, done_task) && (good = set_limits(leaf, &limits))) strcpy(done_task, leaf);
    }
    if (good) {
        snprintf(held, sizeof held, "%u.held", job);
        int mark = openat(directory, held, O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644);
        if (mark < 0) good = wrong("%s/jobs/%s cannot be written: %s", run_dir, held, strerror(errno));
        else close(mark);
    }
    close(directory);
    return good;
}

static int refuse(void) {
    slurm_error("partage: this job's memory limit cannot be set, so its task does not begin: %s", sentence);
    return REFUSED;
}

/* In slurmstepd, before it forks the tasks. */
int slurm_spank_init(spank_t spank, int count, char **words) {
    if (spank_remote(spank) != 1 || verdict) return ESPANK_SUCCESS;
    verdict = mmap(NULL, sizeof *verdict, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (verdict == MAP_FAILED) {
        verdict = NULL;
        slurm_error("partage: there is no memory for partage_limits.so");
        return REFUSED;
    }
    return read_options(count, words) ? ESPANK_SUCCESS : refuse();
}

/* In slurmstepd, for each task; all wait until this was done for the last one. */
int slurm_spank_task_post_fork(spank_t spank, int count, char **words) {
    pid_t task = 0;
    (void)count, (void)words;
    if (spank_remote(spank) != 1) return ESPANK_SUCCESS;
    int extern_step = spank_get_item(spank, S_TASK_PID, &task) != ESPANK_SUCCESS;
    *sentence = 0;
    if (limit(spank, extern_step ? 0 : task)) {
        verdict->good += !extern_step;
        return ESPANK_SUCCESS;
    }
    if (extern_step) return refuse();
    memcpy(verdict->why, sentence, sizeof sentence);
    verdict->bad = 1;
    return ESPANK_SUCCESS; /* an error here drains the node (seen on 22.05.8): the task ends itself */
}

/* In the task, as its user, before it begins. */
int slurm_spank_task_init(spank_t spank, int count, char **words) {
    (void)count, (void)words;
    if (spank_remote(spank) != 1 || (verdict && verdict->good && !verdict->bad)) return ESPANK_SUCCESS;
    memcpy(sentence, verdict ? verdict->why : "", verdict ? sizeof sentence : 1);
    if (!*sentence) wrong("slurmstepd has not asked for it");
    return refuse();
}
