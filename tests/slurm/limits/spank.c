/* A stand-in for slurmstepd: loads the plugin, calls it as slurmstepd does for one task, and says what it answered.
 *
 *   spank PLUGIN JOB TASK_PID|- [OPTION ...]
 *
 * JOB: what S_JOB_ID is. -: an extern step, which has no task. The process is to be in the cgroup of a step already. */
#include <dlfcn.h>
#include <slurm/spank.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

static uint32_t job;
static pid_t task;

int spank_remote(spank_t spank) { return spank == NULL; }
void slurm_error(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    puts("");
}
spank_err_t spank_get_item(spank_t spank, spank_item_t item, ...) {
    va_list arguments;
    (void)spank;
    va_start(arguments, item);
    void *to = va_arg(arguments, void *);
    va_end(arguments);
    if (item == S_JOB_ID) memcpy(to, &job, sizeof job);
    else if (item == S_TASK_PID && task) memcpy(to, &task, sizeof task);
    else return ESPANK_NOT_TASK;
    return ESPANK_SUCCESS;
}

int main(int count, char **words) {
    static const char *const calls[] = {"slurm_spank_init", "slurm_spank_task_post_fork", "slurm_spank_task_init"};
    void *plugin = count > 3 ? dlopen(words[1], RTLD_NOW) : NULL;
    if (!plugin) return fprintf(stderr, "%s\n", count > 3 ? dlerror() : "used as: spank PLUGIN JOB TASK_PID|- [OPTION ...]"), 2;
    job = (uint32_t)strtoul(words[2], NULL, 10);
    task = strcmp(words[3], "-") ? (pid_t)atoi(words[3]) : 0;
    for (int at = 0; at < (task ? 3 : 2); at++) {
        int (*call)(spank_t, int, char **);
        *(void **)&call = dlsym(plugin, calls[at]);
        int answer = call(NULL, count - 4, words + 4);
        if (answer < 0) return 1;
        if (answer) return printf("%s answered %d, with which slurmstepd goes on\n", calls[at], answer), 3;
    }
    return 0;
}
