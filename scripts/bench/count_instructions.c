// A plugin of qemu-user (interface 1): prints how many instructions a program executed. It needs no headers of qemu; count_rows.py compiles it.
#include <inttypes.h>
#include <stdio.h>

struct block;
extern size_t qemu_plugin_tb_n_insns(const struct block *);
extern void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id, void (*)(uint64_t, struct block *));
extern void qemu_plugin_register_vcpu_tb_exec_inline(struct block *, int operation, void * to, uint64_t by);
extern void qemu_plugin_register_atexit_cb(uint64_t id, void (*)(uint64_t, void *), void *);

__attribute__((visibility("default"))) int qemu_plugin_version = 1;
static uint64_t n;

static void translated(uint64_t id, struct block * block) {
    (void) id;
    qemu_plugin_register_vcpu_tb_exec_inline(block, 0, &n, qemu_plugin_tb_n_insns(block)); // 0: add
}
static void end(uint64_t id, void * data) {
    (void) id, (void) data;
    fprintf(stderr, "instructions: %" PRIu64 "\n", n);
}
__attribute__((visibility("default"))) int qemu_plugin_install(uint64_t id, const void * about, int argc, char ** argv) {
    (void) about, (void) argc, (void) argv;
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_atexit_cb(id, end, NULL);
    return 0;
}
