/* Threads that work through the phases of a job. A phase is a number of tasks; whichever thread is free takes the next one.

   A thread that the machine does not run delays nobody: the others take its tasks. */
#pragma once
#include <immintrin.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#define SPINS 2000 /* looks for work before a thread sleeps, about 40 microseconds */

typedef void (*Work)(void *job, int phase, int task, int thread);

typedef struct {
    _Alignas(64) atomic_int taken;
    _Alignas(64) atomic_int done;
    int tasks;
} Phase;

typedef struct Pool {
    pthread_mutex_t call; /* one job at a time */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    pthread_t *threads;
    int count;            /* with the caller */
    pid_t process;        /* a fork has no threads: they are started again */
    atomic_uint number;   /* of the newest job */
    atomic_int inside;    /* threads at work on it, without the caller */
    int is_open, is_ended;
    Phase *phases;
    int phase_count, phase_room;
    Work work;
    void *job;
    struct Pool *next; /* in `pools` */
} Pool;

typedef struct {
    Pool *pool;
    int thread;
} Member;

/* Wait without work: first busily, then letting other programs run. */
static void pause_thread(int spins) {
    if (spins < SPINS) _mm_pause();
    else sched_yield();
}

static void take_tasks(Pool *pool, int thread) {
    for (int p = 0; p < pool->phase_count; p++) {
        Phase *phase = &pool->phases[p];
        int task;
        while ((task = atomic_fetch_add(&phase->taken, 1)) < phase->tasks) {
            pool->work(pool->job, p, task, thread);
            atomic_fetch_add(&phase->done, 1);
        }
        for (int spins = 0; atomic_load(&phase->done) < phase->tasks; spins++) pause_thread(spins);
    }
}

static void *thread_main(void *given) {
    Member member = *(Member *)given;
    Pool *pool = member.pool;
    unsigned seen = 0;
    free(given);
    for (;;) {
        for (int spins = 0; spins < SPINS && atomic_load(&pool->number) == seen; spins++) _mm_pause();
        pthread_mutex_lock(&pool->lock);
        while (atomic_load(&pool->number) == seen && !pool->is_ended) pthread_cond_wait(&pool->wake, &pool->lock);
        seen = atomic_load(&pool->number);
        int is_open = pool->is_open, is_ended = pool->is_ended;
        if (is_open) atomic_fetch_add(&pool->inside, 1);
        pthread_mutex_unlock(&pool->lock);
        if (is_ended) return NULL;
        if (is_open) {
            take_tasks(pool, member.thread);
            atomic_fetch_sub(&pool->inside, 1);
        }
    }
}

/* Start the threads, at the first job and at the first one in a fork. With fewer threads the rest does the same work. */
static void start_threads(Pool *pool) {
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    atomic_store(&pool->number, 0);
    atomic_store(&pool->inside, 0);
    pool->is_open = pool->is_ended = 0;
    pool->process = getpid();
    for (int i = 1; i < pool->count; i++) {
        Member *member = malloc(sizeof *member);
        if (member) *member = (Member){pool, i};
        if (!member || pthread_create(&pool->threads[i], NULL, thread_main, member)) {
            free(member);
            pool->count = i;
        }
    }
}

/* All pools. A process forks between two jobs, so that its child finds every pool at rest. */
static Pool *pools;
static pthread_mutex_t pools_lock = PTHREAD_MUTEX_INITIALIZER;

static void before_fork(void) {
    pthread_mutex_lock(&pools_lock);
    for (Pool *pool = pools; pool; pool = pool->next) pthread_mutex_lock(&pool->call);
}

static void after_fork(void) {
    for (Pool *pool = pools; pool; pool = pool->next) pthread_mutex_unlock(&pool->call);
    pthread_mutex_unlock(&pools_lock);
}

static Pool *new_pool(int count) {
    Pool *pool = calloc(1, sizeof *pool);
    if (!pool || !(pool->threads = calloc(count, sizeof(pthread_t)))) { free(pool); return NULL; }
    pool->count = count;
    pthread_mutex_init(&pool->call, NULL);
    pthread_mutex_lock(&pools_lock);
    pool->next = pools;
    pools = pool;
    pthread_mutex_unlock(&pools_lock);
    return pool;
}

static void free_pool(Pool *pool) {
    pthread_mutex_lock(&pools_lock);
    Pool **link = &pools;
    while (*link != pool) link = &(*link)->next;
    *link = pool->next;
    pthread_mutex_unlock(&pools_lock);
    if (pool->process == getpid()) {
        pthread_mutex_lock(&pool->lock);
        pool->is_ended = 1;
        pthread_cond_broadcast(&pool->wake);
        pthread_mutex_unlock(&pool->lock);
        for (int i = 1; i < pool->count; i++) pthread_join(pool->threads[i], NULL);
    }
    free(pool->threads), free(pool->phases), free(pool);
}

/* Room for the phases of a job; the caller sets their `tasks`. */
static int set_phases(Pool *pool, int count) {
    if (count > pool->phase_room) {
        free(pool->phases);
        pool->phases = aligned_alloc(64, sizeof(Phase) * count);
        pool->phase_room = pool->phases ? count : 0;
    }
    pool->phase_count = pool->phases ? count : 0;
    for (int p = 0; p < pool->phase_count; p++) pool->phases[p].taken = pool->phases[p].done = 0;
    return pool->phases ? 0 : -1;
}

/* Open or close the job for the other threads. */
static void open_job(Pool *pool, int is_open) {
    pthread_mutex_lock(&pool->lock);
    pool->is_open = is_open;
    if (is_open) {
        atomic_fetch_add(&pool->number, 1);
        pthread_cond_broadcast(&pool->wake);
    }
    pthread_mutex_unlock(&pool->lock);
}

/* Run a job whose phases are set. `call` is held. */
static void run_phases(Pool *pool, Work work, void *job) {
    pool->work = work;
    pool->job = job;
    if (pool->process != getpid()) start_threads(pool);
    if (pool->count == 1) {
        take_tasks(pool, 0);
        return;
    }
    open_job(pool, 1);
    take_tasks(pool, 0);
    open_job(pool, 0);
    for (int spins = 0; atomic_load(&pool->inside); spins++) pause_thread(spins);
}
