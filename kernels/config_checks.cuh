// What the kernel itself relies on. The full rules, with reasons, stand in tuner/legality.py.
#pragma once
#include "config.cuh"

static_assert(Config::block_m % 64 == 0, "WGMMA takes 64 rows");
static_assert(Config::consumer_m % 64 == 0, "each consumer takes whole 64-row blocks");
static_assert(Config::consumer_n % 8 == 0 && Config::consumer_n <= 256, "WGMMA's N");
static_assert(Config::block_m >= 8 * Config::cluster_n, "a multicast slice has an 8-row group");
static_assert(Config::block_n >= 8 * Config::cluster_m, "a multicast slice has an 8-row group");
static_assert(Config::cluster_m * Config::cluster_n <= 8, "portable cluster size");
static_assert(!Config::pingpong || Config::consumers == 2, "ping-pong alternates between two");
static_assert(Config::stages >= 2, "a ring of one cannot overlap");
