/* A clock that a test sets: preloaded, it shifts a process' time of day by the nanoseconds in a file.

   The steady clock and every wait by it are left alone, as a real step of the clock leaves them. A
   wait until a time of day is shifted, too: the kernel that carries it out knows only the real one. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL
#define IN_A_DAY_OF_OURS 1000000000 /* seconds: no steady clock is as old */

static const volatile int64_t *offset;

__attribute__((constructor)) static void open_clock(void) {
    int fd = open(CLOCK_FILE, O_RDONLY | O_CLOEXEC);
    void *found = fd < 0 ? MAP_FAILED : mmap(0, sizeof *offset, PROT_READ, MAP_SHARED, fd, 0);
    if (fd >= 0) close(fd);
    if (found != MAP_FAILED) offset = found;
}

static void *real(const char *name, const char *version) {
    void *found = version ? dlvsym(RTLD_NEXT, name, version) : 0;
    return found ? found : dlsym(RTLD_NEXT, name);
}

static void shift(struct timespec *at, int64_t by) {
    int64_t whole = at->tv_sec * SECOND + at->tv_nsec + by;
    at->tv_sec = whole / SECOND;
    at->tv_nsec = whole % SECOND;
}

int clock_gettime(clockid_t which, struct timespec *at) {
    static int (*next)(clockid_t, struct timespec *);
    if (!next) next = real("clock_gettime", 0);
    int failed = next(which, at);
    if (!failed && offset && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE))
        shift(at, *offset);
    return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}

int timespec_get(struct timespec *at, int base) {
    return base == TIME_UTC && !clock_gettime(CLOCK_REALTIME, at) ? base : 0;
}

static struct timespec meant(const struct timespec *until) {
    struct timespec found = *until;
    if (offset && found.tv_sec > IN_A_DAY_OF_OURS) shift(&found, -*offset);
    return found;
}

int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
    static int (*next)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (!next) next = real("pthread_cond_timedwait", "GLIBC_2.3.2");
    struct timespec its = meant(until);
    return next(cond, mutex, &its);
}

int sem_timedwait(sem_t *restrict sem, const struct timespec *restrict until) {
    static int (*next)(sem_t *, const struct timespec *);
    if (!next) next = real("sem_timedwait", 0);
    struct timespec its = meant(until);
    return next(sem, &its);
}
