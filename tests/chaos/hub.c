/* hub: a switch between network namespaces whose ways can be cut, made lossy and slow, each direction for itself.
 *
 * It makes a TAP device `tap0` in each of the namespaces that it is given and carries Ethernet frames between them. The
 * device of the Nth namespace has the address 02:00:00:00:00:N; frames to other addresses (broadcasts) are dropped, so
 * neighbours are told by hand (namespaces.py). Lines on standard input change a way at once, and are answered by `ok`:
 *
 *   FROM TO CUT LOSS DELAY_US    numbers of namespaces from 1; CUT 0 or 1; LOSS of 1000 frames; each frame held so long
 *
 * It ends with its standard input. bench/netdelay.c is the same for two ends, and with one delay. Needs root.
 *
 *   cc -O2 -pthread -o hub hub.c
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <net/if_arp.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { FRAME_MAX = 9100, NODES_MAX = 16, WAITING_MAX = 16384 };

struct way { atomic_int cut, loss; atomic_long delay_us; };

struct frame {
	struct frame *next;
	struct timespec due;
	int length;
	unsigned char bytes[];
};

struct node {
	int number, tap;
	unsigned seed;
	struct frame *waiting; /* to this node, the next to send first */
	int count;
	pthread_mutex_t lock;
	pthread_cond_t changed;
};

static struct way ways[NODES_MAX][NODES_MAX];
static struct node nodes[NODES_MAX];
static int node_count;

static void die(const char *what) { perror(what); exit(1); }

static int open_tap(const char *namespace, int number)
{
	char path[256];
	int home = open("/proc/self/ns/net", O_RDONLY);
	snprintf(path, sizeof path, "/run/netns/%s", namespace);
	int fd = open(path, O_RDONLY);
	if (home < 0 || fd < 0 || setns(fd, CLONE_NEWNET)) die(path);
	close(fd);
	int tap = open("/dev/net/tun", O_RDWR), control = socket(AF_INET, SOCK_DGRAM, 0);
	if (tap < 0 || control < 0) die("/dev/net/tun");
	struct ifreq request = { .ifr_name = "tap0", .ifr_flags = IFF_TAP | IFF_NO_PI };
	if (ioctl(tap, TUNSETIFF, &request)) die("TUNSETIFF");
	request.ifr_hwaddr.sa_family = ARPHRD_ETHER;
	memcpy(request.ifr_hwaddr.sa_data, (char[]){ 2, 0, 0, 0, 0, number }, 6);
	if (ioctl(control, SIOCSIFHWADDR, &request)) die("SIOCSIFHWADDR");
	close(control);
	if (setns(home, CLONE_NEWNET)) die("back to own namespace");
	close(home);
	return tap;
}

static int is_before(const struct timespec *one, const struct timespec *other)
{
	return one->tv_sec < other->tv_sec || (one->tv_sec == other->tv_sec && one->tv_nsec < other->tv_nsec);
}

static void send_now(struct node *to, const unsigned char *bytes, int length)
{
	if (write(to->tap, bytes, length) < 0 && errno != EIO && errno != ENOBUFS) die("write");
}

static void send_later(struct node *to, const unsigned char *bytes, int length, long delay_us)
{
	struct frame *frame = malloc(sizeof *frame + length);
	if (!frame) die("malloc");
	frame->length = length;
	memcpy(frame->bytes, bytes, length);
	clock_gettime(CLOCK_MONOTONIC, &frame->due);
	long nanoseconds = frame->due.tv_nsec + delay_us % 1000000 * 1000;
	frame->due.tv_sec += delay_us / 1000000 + nanoseconds / 1000000000;
	frame->due.tv_nsec = nanoseconds % 1000000000;
	pthread_mutex_lock(&to->lock);
	if (to->count == WAITING_MAX) {
		free(frame);
	} else {
		struct frame **place = &to->waiting;
		while (*place && !is_before(&frame->due, &(*place)->due)) place = &(*place)->next;
		frame->next = *place;
		*place = frame;
		to->count++;
		pthread_cond_signal(&to->changed);
	}
	pthread_mutex_unlock(&to->lock);
}

static void *receive(void *argument)
{
	struct node *from = argument;
	unsigned char bytes[FRAME_MAX];
	for (;;) {
		int length = read(from->tap, bytes, sizeof bytes);
		/* EIO: the device is not up yet. */
		if (length <= 0) { if (errno == EINTR || errno == EIO) { usleep(1000); continue; } die("read"); }
		int to = bytes[5] - 1;
		if (length < 14 || bytes[0] != 2 || to < 0 || to >= node_count) continue;
		struct way *way = &ways[from->number][to];
		if (way->cut || rand_r(&from->seed) % 1000 < way->loss) continue;
		long delay_us = way->delay_us;
		if (delay_us) send_later(&nodes[to], bytes, length, delay_us);
		else send_now(&nodes[to], bytes, length);
	}
	return NULL;
}

static void *send_what_is_due(void *argument)
{
	struct node *to = argument;
	pthread_mutex_lock(&to->lock);
	for (;;) {
		struct timespec now;
		clock_gettime(CLOCK_MONOTONIC, &now);
		struct frame *frame = to->waiting;
		if (!frame) {
			pthread_cond_wait(&to->changed, &to->lock);
		} else if (is_before(&now, &frame->due)) {
			struct timespec due = frame->due;
			pthread_cond_timedwait(&to->changed, &to->lock, &due);
		} else {
			to->waiting = frame->next;
			to->count--;
			pthread_mutex_unlock(&to->lock);
			send_now(to, frame->bytes, frame->length);
			free(frame);
			pthread_mutex_lock(&to->lock);
		}
	}
	return NULL;
}

static void start(void *(*function)(void *), struct node *node)
{
	pthread_t thread;
	if (pthread_create(&thread, NULL, function, node)) die("pthread_create");
}

int main(int count, char **arguments)
{
	node_count = count - 1;
	if (node_count < 2 || node_count > NODES_MAX) {
		fprintf(stderr, "usage: hub NAMESPACE NAMESPACE...: from 2 to %d of them\n", NODES_MAX);
		return 2;
	}
	for (int i = 0; i < node_count; i++) {
		struct node *node = &nodes[i];
		node->number = i;
		node->seed = i + 1;
		node->tap = open_tap(arguments[i + 1], i + 1);
		pthread_condattr_t clock;
		pthread_condattr_init(&clock);
		pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
		pthread_mutex_init(&node->lock, NULL);
		pthread_cond_init(&node->changed, &clock);
	}
	for (int i = 0; i < node_count; i++) {
		start(receive, &nodes[i]);
		start(send_what_is_due, &nodes[i]);
	}
	puts("ok");
	fflush(stdout);
	char line[128];
	while (fgets(line, sizeof line, stdin)) {
		int from, to, cut, loss;
		long delay_us;
		int known = sscanf(line, "%d %d %d %d %ld", &from, &to, &cut, &loss, &delay_us) == 5;
		known = known && from > 0 && from <= node_count && to > 0 && to <= node_count;
		if (known) {
			struct way *way = &ways[from - 1][to - 1];
			way->cut = cut;
			way->loss = loss;
			way->delay_us = delay_us;
		}
		puts(known ? "ok" : "what?");
		fflush(stdout);
	}
	return 0;
}
