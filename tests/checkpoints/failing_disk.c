/* Stands before the C library for files under $DISK: fails as $DISK_FAULT says, whose text may change at any time.
 *
 *   bytes N ERRNO    writes succeed for N more bytes, then fail after a short write
 *   fsync K ERRNO    the K-th fsync from now on fails, once
 *   write K ERRNO    the K-th write from now on fails, once
 *   rename K ERRNO   the K-th rename from now on fails, once
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

static int is_watched(const char *path) {
    const char *disk = getenv("DISK");
    return disk && strncmp(path, disk, strlen(disk)) == 0;
}

static int is_watched_file(int descriptor) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    return is_watched(path);
}

/* How many of `count` units of `kind` go through; the rest fails with *code. */
static long granted(const char *kind, long count, int *code) {
    char text[128] = "", found[16] = "";
    long left = 0, result = count;
    pthread_mutex_lock(&turn);
    int file = open(getenv("DISK_FAULT"), O_RDWR);
    if (file >= 0) {
        if (read(file, text, sizeof text - 1) > 0 && sscanf(text, "%15s %ld %d", found, &left, code) == 3 &&
            strcmp(found, kind) == 0) {
            int is_budget = strcmp(kind, "bytes") == 0;
            if (is_budget) result = count < left ? count : left;
            else result = left == 1 ? 0 : count;
            int length = left > 0 ? snprintf(text, sizeof text, "%s %ld %d\n", kind, is_budget ? left - result : left - 1, *code) : 0;
            if (length && (ftruncate(file, 0) || pwrite(file, text, length, 0) != length)) abort();
        }
        close(file);
    }
    pthread_mutex_unlock(&turn);
    return result;
}

#define REAL(name) ((typeof(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int descriptor, const void *data, size_t size) {
    if (size && is_watched_file(descriptor)) {
        int code = 0;
        long count = granted("bytes", (long)size, &code);
        if (count > 0 && !granted("write", 1, &code)) count = 0;
        if (count <= 0) { errno = code; return -1; }
        size = (size_t)count;
    }
    return REAL(write)(descriptor, data, size);
}

int fsync(int descriptor) {
    int code = 0;
    if (is_watched_file(descriptor) && !granted("fsync", 1, &code)) { errno = code; return -1; }
    return REAL(fsync)(descriptor);
}

int rename(const char *from, const char *to) {
    int code = 0;
    if (is_watched(to) && !granted("rename", 1, &code)) { errno = code; return -1; }
    return REAL(rename)(from, to);
}
