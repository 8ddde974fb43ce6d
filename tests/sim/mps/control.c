/* The interpreter of the simulated control program in tests: CONTROL PYTHON SCRIPT WORDS...

   Commands it gives to the daemon itself, as partage.sim.mps.control does, in a tenth of the time in which a
   Python starts; a daemon gets many. All else is for Python. What both say is the same: test_program.py. */

#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { ENDED = -1 };

static int fail(const char *text) {
    fprintf(stderr, "%s\n", text);
    return 1;
}

static int all_sent(int daemon, const char *text, size_t size) {
    while (size > 0) {
        ssize_t sent = send(daemon, text, size, MSG_NOSIGNAL);
        if (sent < 0)
            return 0;
        text += sent;
        size -= (size_t)sent;
    }
    return 1;
}

static int connected(void) {
    const char *pipe = getenv("CUDA_MPS_PIPE_DIRECTORY");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int size = snprintf(address.sun_path, sizeof address.sun_path, "%s/control", pipe ? pipe : "/tmp/nvidia-mps");
    if (size < 0 || (size_t)size >= sizeof address.sun_path)
        return ENDED;
    int daemon = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (daemon < 0 || connect(daemon, (struct sockaddr *)&address, sizeof address) < 0)
        return ENDED;
    return all_sent(daemon, "control\n", 8) ? daemon : ENDED;
}

/* Prints the answer. 0: there was one; 1: it was an error; ENDED: there was none, which takes no word. */
static int ask(FILE *answers, int daemon, const char *command, size_t size) {
    if (!all_sent(daemon, command, size) || !all_sent(daemon, "\n", 1))
        return ENDED;
    size_t length;
    if (fscanf(answers, "%zu", &length) != 1 || fgetc(answers) != '\n')
        return ENDED;
    char *text = calloc(1, length + 1);
    if (!text || fread(text, 1, length, answers) != length)
        return ENDED;
    int is_error = text[0] == '\x01';
    if (is_error)
        fail(text + 1);
    else if (length)
        puts(text);
    fflush(stdout);
    free(text);
    return is_error;
}

static int commands_of_input(FILE *answers, int daemon) {
    char *line = NULL;
    size_t room = 0;
    ssize_t size;
    int said = 0;
    while (said == 0 && (size = getline(&line, &room, stdin)) >= 0) {
        while (size > 0 && strchr(" \t\r\n", line[size - 1]))
            size--;
        said = ask(answers, daemon, line, (size_t)size);
    }
    free(line);
    return said == 1;
}

static int command_of_words(FILE *answers, int daemon, char **words) {
    char command[8192] = "";
    for (int first = 1; *words; words++, first = 0) {
        if (strlen(command) + strlen(*words) + 2 > sizeof command)
            return fail("too long");
        strcat(strcat(command, first ? "" : " "), *words);
    }
    return ask(answers, daemon, command, strlen(command)) == 1;
}

static int is_command(const char *word) {
    return !strcmp(word, "server") || !strcmp(word, "namespace") || !strcmp(word, "client") || !strcmp(word, "-q");
}

static int run_python(char **argv) {
    const char *words[256] = {argv[1], "-IS"};
    for (int i = 2; argv[i] && i < 255; i++)
        words[i] = argv[i];
    execv(argv[1], (char **)words);
    return fail(strerror(errno));
}

int main(int argc, char **argv) {
    if (argc < 3)
        return fail("CONTROL PYTHON SCRIPT WORDS...");
    if (argc > 3 && !is_command(argv[3]))
        return run_python(argv);
    int daemon = connected();
    FILE *answers = daemon == ENDED ? NULL : fdopen(daemon, "rb");
    if (!answers)
        return fail("Cannot find MPS control daemon process");
    return argc > 3 ? command_of_words(answers, daemon, argv + 3) : commands_of_input(answers, daemon);
}
