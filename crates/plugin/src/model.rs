//! The memory model: from an access to what it costs.
//!
//! The path of an access, cheapest first:
//! 1. *Filter* (`filter`): virtual lines that are surely in the vCPU's private cache. Most accesses
//!    end here.
//! 2. *Translation* by the modelled buffer, then the private cache.
//! 3. *Last-level cache* of the domain, its siblings' copies, and the directory of other domains.
//! 4. *Memory*: a stream costs bandwidth, an independent miss its latency over the core's
//!    parallelism, a dependent one its latency. Traffic is posted at synchronisations (`load`).
//!
//! Lines that several vCPUs write in turn are `contest`'s: they stay out of the filter.

use crate::cache::{Directory, Entry, Llc, Private};
use crate::clock::Clock;
use crate::contest::{Contests, Visit};
use crate::device::Device;
use crate::filter::Filter;
use crate::guest::Executed;
use crate::load::{Load, Prices};
use crate::regions::Regions;
use crate::spaces::Spaces;
use crate::vcpu::{Fill, Score, Vcpu};
use hither_core::machine::{Cpu, Machine};
use hither_core::opium::{self, vcpu as block};
use std::sync::Mutex;
use std::sync::atomic::{Ordering::Relaxed, Ordering::SeqCst, fence};

/// Stream lines that computing time can be saved up for.
const OVERLAP_LINES: u64 = 16;

/// A memory access that the filter did not answer.
#[derive(Clone, Copy)]
pub struct Access<'a> {
    /// Virtual address.
    pub vaddr: u64,
    /// Physical address.
    pub paddr: u64,
    /// Address of the instruction when it was translated: tells instructions apart.
    pub pc: u64,
    /// Reads where it is in the process that runs, which samples need.
    pub executed: &'a dyn Fn() -> Executed,
    /// Reads the value loaded, which few accesses need.
    pub value: &'a dyn Fn() -> u64,
    /// A store?
    pub store: bool,
    /// In kernel mode?
    pub kernel: bool,
}

/// The whole machine.
pub struct Model {
    /// Its description.
    pub machine: Machine,
    /// log2 of the line size.
    pub line_shift: u32,
    /// Shared pages.
    pub device: Device,
    /// Virtual time.
    pub clock: Clock,
    /// Controllers and links.
    pub load: Load,
    /// Region filters as last read.
    pub regions: Mutex<Regions>,
    /// Counters of address spaces.
    pub spaces: Spaces,
    /// What each vCPU need not ask for.
    pub filter: Filter,
    private: Vec<Private>,
    llcs: Vec<Llc>,
    directory: Directory,
    contests: Contests,
    /// vCPUs of each domain, by slot.
    members: Vec<Vec<usize>>,
    /// First line of each node, and the total.
    node_starts: Vec<u64>,
    /// Bytes of memory below 4 GB.
    low_bytes: u64,
    private_ps: u64,
    llc_ps: Vec<u64>,
}

/// What an access beyond the private cache came to.
struct Served {
    stall_ps: u64,
    /// Of whoever served it; of a stream's line, its stall.
    latency_ps: u64,
    /// Charged as a line of a stream?
    stream: bool,
}

/// What `contest` says of an access.
enum Contested {
    /// An ordinary line.
    No,
    /// A contested line, but nobody came in between.
    Quiet,
    /// Somebody did: the transfer in ps.
    Pays(u64),
}

/// Does a load wait for an earlier one? Remembers what it loads itself.
fn depends(vcpu: &mut Vcpu, access: &Access) -> bool {
    if access.store {
        return false; // the store buffer waits, not the core
    }
    let dependent = vcpu.dependence.check(access.pc, access.vaddr);
    vcpu.dependence.loaded((access.value)());
    dependent
}

/// What is booked of an access to memory of this node.
#[inline(always)]
fn fill<'a>(access: &Access<'a>, node: usize, latency_ps: u64, stream: bool) -> Fill<'a> {
    Fill {
        pc: access.pc,
        executed: access.executed,
        vaddr: access.vaddr,
        paddr: access.paddr,
        node,
        store: access.store,
        kernel: access.kernel,
        stream,
        latency_ps,
    }
}

/// How long a vCPU has computed: its time less its stalls.
fn computing_ps(vcpu: &Vcpu, score: &Score) -> u64 {
    (vcpu.time_ps + score.since_ps()).wrapping_sub(vcpu.stalled_ps + vcpu.stall_ps)
}

/// Bandwidth cost of a stream's line: a stream of stores that hardly overlap is no faster than they.
fn stream_ps(cpu: &Cpu, prices: &Prices, node: usize, store: bool) -> u64 {
    let cost_ps = prices.stream_ps[node];
    match cpu.store_mlp {
        Some(mlp) if store => cost_ps.max((prices.latency_ps[node] as f64 / mlp) as u64),
        _ => cost_ps,
    }
}

/// q35 leaves this much below 4 GB where memory does not fit there at once (QEMU `pc_q35.c`).
const LOW_LIMIT: u64 = 0xb000_0000;
const LOW_WITH_HIGH: u64 = 0x8000_0000;
const FOUR_GB: u64 = 1 << 32;

impl Model {
    /// Builds the machine at rest.
    pub fn new(machine: Machine, device: Device, skew_ns: u64, ring: fn()) -> Self {
        let line = u64::from(machine.line_bytes);
        let mut node_starts = vec![0];
        for node in &machine.nodes {
            node_starts
                .push(node_starts.last().copied().unwrap_or(0) + (node.memory_mb << 20) / line);
        }
        let total = node_starts.last().copied().unwrap_or(0) * line;
        let cache = &machine.private_cache;
        let private = (0..machine.cpu_count())
            .map(|_| Private::new(cache.size_kb << 10, line, cache.ways as usize))
            .collect();
        let llcs = (machine.domains.iter())
            .map(|domain| Llc::new(domain.cache.size_kb << 10, line, domain.cache.ways as usize))
            .collect();
        Self {
            line_shift: line.trailing_zeros(),
            clock: Clock::new(skew_ns, machine.cpu_count(), ring),
            load: Load::new(&machine),
            regions: Mutex::default(),
            spaces: Spaces::default(),
            filter: Filter::new(line),
            private,
            llcs,
            directory: Directory::new((total / line) as usize),
            contests: Contests::new(machine.cpu_count()),
            members: (machine.domains.iter())
                .map(|domain| domain.cpus.iter().map(|cpu| cpu.0 as usize).collect())
                .collect(),
            node_starts,
            low_bytes: if total >= LOW_LIMIT {
                LOW_WITH_HIGH
            } else {
                total
            },
            private_ps: (cache.latency_ns * 1000.0) as u64,
            llc_ps: machine
                .domains
                .iter()
                .map(|domain| (domain.cache.latency_ns * 1000.0) as u64)
                .collect(),
            device,
            machine,
        }
    }

    /// Calls `with` for the vCPU of each slot in a bit mask of the domain's.
    #[inline(always)]
    fn each(&self, domain: u32, mut slots: u64, with: impl Fn(usize)) {
        let members = &self.members[domain as usize];
        while slots != 0 {
            with(members[slots.trailing_zeros() as usize]);
            slots &= slots - 1;
        }
    }

    fn invalidate(&self, vcpu: usize, line: u64) {
        self.private[vcpu].invalidate(line);
        self.filter.remove(vcpu, line << self.line_shift);
    }

    fn downgrade(&self, vcpu: usize, line: u64) {
        self.private[vcpu].downgrade(line);
        self.filter.remove(vcpu, line << self.line_shift);
    }

    /// Line number and node position of a physical address; `None` for device memory.
    pub fn locate(&self, paddr: u64) -> Option<(u64, usize)> {
        let offset = match paddr {
            low if low < self.low_bytes => low,
            high if high >= FOUR_GB => high - FOUR_GB + self.low_bytes,
            _ => return None,
        };
        let line = offset >> self.line_shift;
        let node = self.node_starts[1..].iter().position(|&end| line < end)?;
        Some((line, node))
    }

    /// Node position of a physical address, and the offset into its memory.
    pub fn place(&self, paddr: u64) -> Option<(usize, u64)> {
        let (line, node) = self.locate(paddr)?;
        let within = paddr & ((1 << self.line_shift) - 1);
        let offset = (line - self.node_starts[node]) << self.line_shift;
        Some((node, offset + within))
    }

    /// A line is written by who has no cache: nobody's copy holds any more.
    pub fn overwrite(&self, line: u64) {
        let mut holders = self.directory.holders(line);
        while holders != 0 {
            let domain = holders.trailing_zeros();
            holders &= holders - 1;
            self.take_from(domain, line);
        }
    }

    /// An access that the filter did not answer, already translated. Returns its stall in ps.
    pub fn access(&self, vcpu: &mut Vcpu, score: &Score, access: &Access) -> u64 {
        let Some((line, node)) = self.locate(access.paddr) else {
            self.filter.admit(vcpu.id, access.vaddr, true);
            return 0; // the device's pages: priced as private hits
        };
        if access.store {
            vcpu.stored(&self.device, access.pc, access.vaddr);
        }
        let now_ps = vcpu.time_ps + score.since_ps();
        let contested = self.contested(vcpu, line, access.store, now_ps);
        let found = self.private[vcpu.id].find(line);
        if let Some(writable) = found
            && (writable || !access.store)
        {
            match contested {
                Contested::Pays(stall) => {
                    self.transferred(vcpu, access, node, stall);
                    return stall;
                }
                Contested::Quiet => return 0,
                // Writable only for a store, which is worth the check of `keep_if_owner`.
                Contested::No => self
                    .filter
                    .admit(vcpu.id, access.vaddr, writable && access.store),
            }
            if access.store {
                self.keep_if_owner(vcpu, line);
            }
            return if depends(vcpu, access) {
                self.private_ps
            } else {
                0
            };
        }
        let served = self.miss(vcpu, score, access, (line, node), found.is_some(), now_ps);
        let stall = served.stall_ps;
        match found {
            Some(_) => self.private[vcpu.id].insert(line, access.store),
            None => {
                self.private[vcpu.id].fill(line, access.store);
                if !access.kernel && vcpu.reference() {
                    let fill = fill(access, node, served.latency_ps, served.stream);
                    vcpu.sample_reference(&self.device, &fill);
                }
            }
        }
        match contested {
            Contested::Pays(price) => stall.max(price),
            Contested::Quiet => stall,
            Contested::No => {
                self.filter.admit(vcpu.id, access.vaddr, access.store);
                if access.store {
                    self.keep_if_owner(vcpu, line);
                }
                stall
            }
        }
    }

    /// Another vCPU may have taken the line while this one entered it as its own, and would then
    /// never hear of our stores again. It writes the cache's state before it clears our copies; we
    /// write our copies before we look at the state: one of the two sees the other.
    fn keep_if_owner(&self, vcpu: &Vcpu, line: u64) {
        fence(SeqCst);
        let entry = self.llcs[vcpu.domain as usize].probe(line);
        let ours = entry.is_some_and(|entry| entry.owned() && entry.sharers() == 1 << vcpu.slot);
        if !ours {
            self.invalidate(vcpu.id, line);
        }
    }

    /// Beyond the private cache (or an upgrade of a copy there).
    fn miss(
        &self,
        vcpu: &mut Vcpu,
        score: &Score,
        access: &Access,
        place: (u64, usize),
        held: bool,
        now_ps: u64,
    ) -> Served {
        let (line, node) = place;
        let llc = &self.llcs[vcpu.domain as usize];
        if !held {
            vcpu.count(&self.device, block::PRIVATE_MISSES, 1);
            if access.kernel {
                vcpu.count(&self.device, block::KERNEL_REFERENCES, 1);
            }
        }
        while let Some(entry) = llc.find(line, vcpu.ways) {
            let served = self.llc_hit(vcpu, score, access, (entry, node), held, now_ps);
            if let Some(served) = served {
                return served;
            }
        }
        let streaming = vcpu.streams.miss(access.vaddr >> self.line_shift);
        let transfer = match self.directory.others(line, vcpu.domain) {
            0 => None,
            _ => self.fetch_from_domains(vcpu, access.store, line, now_ps),
        };
        let comes_shared =
            node != vcpu.node && self.machine.coherence.remote_ownership_ns.is_some();
        let alone = access.store || !comes_shared && self.directory.others(line, vcpu.domain) == 0;
        let entry = Entry::new(line, vcpu.slot, alone, access.store);
        let victim = llc.insert(entry, vcpu.ways);
        self.directory.add(line, vcpu.domain);
        // Another domain may have filled the line meanwhile: whoever added itself later sees both.
        if alone && self.directory.others(line, vcpu.domain) != 0 {
            if access.store {
                self.fetch_from_domains(vcpu, true, line, now_ps);
            } else {
                // Where that is not so any more, others know it already.
                llc.replace(
                    Entry::new(line, vcpu.slot, true, false),
                    Entry::new(line, vcpu.slot, false, false),
                );
            }
        }
        if let Some(victim) = victim {
            self.evict(vcpu, victim);
        }
        if let Some(transfer_ps) = transfer {
            self.transferred(vcpu, access, node, transfer_ps);
            return Served {
                stall_ps: transfer_ps,
                latency_ps: transfer_ps,
                stream: false,
            };
        }
        let latency_ps = vcpu.prices.latency_ps[node];
        let prefetched = streaming && self.machine.cpu.window.is_none();
        let stall_ps = if prefetched {
            let cost_ps = stream_ps(&self.machine.cpu, &vcpu.prices, node, access.store);
            self.stream_stall(vcpu, score, cost_ps)
        } else {
            let stall_ps = self.demand_stall(vcpu, score, access, latency_ps);
            vcpu.demand_stall_ps += stall_ps;
            stall_ps
        };
        vcpu.waited_ps += stall_ps;
        let latency_ps = if prefetched { stall_ps } else { latency_ps };
        vcpu.fill(&self.device, &fill(access, node, latency_ps, prefetched));
        Served {
            stall_ps,
            latency_ps,
            stream: prefetched,
        }
    }

    /// Books a line that came from another CPU's cache.
    fn transferred(&self, vcpu: &mut Vcpu, access: &Access, node: usize, latency_ps: u64) {
        let fill = fill(access, node, latency_ps, false);
        vcpu.transfer(&self.device, &fill);
    }

    /// Stall of a miss of this latency that no stream covers.
    fn demand_stall(
        &self,
        vcpu: &mut Vcpu,
        score: &Score,
        access: &Access,
        latency_ps: u64,
    ) -> u64 {
        let cpu = &self.machine.cpu;
        if access.store {
            return (latency_ps as f64 / cpu.store_mlp.unwrap_or(cpu.mlp)) as u64;
        }
        let dependent = depends(vcpu, access);
        if dependent {
            vcpu.count(&self.device, block::DEPENDENT_MISSES, 1);
        }
        if let Some(window) = cpu.window {
            // Misses begin together once they are all in the reorder buffer: the first pays.
            let window_ps = (window * cpu.cpi / cpu.ghz * 1000.0) as u64;
            let most = if dependent { 1 } else { cpu.mlp as u32 };
            return match vcpu.burst.joins(computing_ps(vcpu, score), window_ps, most) {
                true => 0,
                false => latency_ps,
            };
        }
        match dependent {
            true => latency_ps,
            false => (latency_ps as f64 / cpu.mlp) as u64,
        }
    }

    /// Stall of a stream's line: its bandwidth cost less the computing time that hides it.
    fn stream_stall(&self, vcpu: &mut Vcpu, score: &Score, cost_ps: u64) -> u64 {
        let share = self.machine.cpu.stream_overlap;
        if share == 0.0 {
            return cost_ps;
        }
        let computing = computing_ps(vcpu, score);
        let passed = computing.saturating_sub(vcpu.overlap_mark_ps);
        vcpu.overlap_mark_ps = computing;
        let saved = (vcpu.overlap_ps + (passed as f64 * share) as u64).min(OVERLAP_LINES * cost_ps);
        let hidden = saved.min(cost_ps);
        vcpu.overlap_ps = saved - hidden;
        cost_ps - hidden
    }

    /// A line that the last-level cache has; `None` where another vCPU changed its state meanwhile.
    fn llc_hit(
        &self,
        vcpu: &mut Vcpu,
        score: &Score,
        access: &Access,
        place: (Entry, usize),
        held: bool,
        now_ps: u64,
    ) -> Option<Served> {
        let (entry, node) = place;
        let line = entry.line();
        let siblings = entry.sharers() & !(1 << vcpu.slot);
        let taken = entry.owned() && siblings != 0;
        // The new state first, then the old copies: see `keep_if_owner`.
        let state = match (access.store, taken || !entry.owned()) {
            (true, _) => entry.written_by(vcpu.slot),
            (false, true) => entry.shared_with(vcpu.slot),
            (false, false) => entry,
        };
        if state != entry && !self.llcs[vcpu.domain as usize].replace(entry, state) {
            return None;
        }
        if access.store {
            self.each(vcpu.domain, siblings, |member| {
                self.invalidate(member, line)
            });
        } else if taken {
            self.each(vcpu.domain, siblings, |member| self.downgrade(member, line));
        }
        let mut stall = 0;
        if access.store {
            let shared = siblings != 0 || !entry.exclusive();
            let elsewhere = if entry.exclusive() {
                None
            } else {
                self.fetch_from_domains(vcpu, true, line, now_ps)
            };
            if shared && !taken {
                vcpu.count(&self.device, block::INVALIDATIONS, 1);
                // Where others had it elsewhere, `fetch_from_domains` has marked it.
                if siblings != 0 {
                    self.contests.mark(vcpu.id, line, true, now_ps);
                }
                stall = elsewhere
                    .unwrap_or(0)
                    .max(self.ownership_ps(vcpu, access, node));
            }
        }
        if taken {
            stall = (self.machine.coherence.same_domain_ns * 1000.0) as u64;
            self.transferred(vcpu, access, node, stall);
            self.contests.mark(vcpu.id, line, access.store, now_ps);
        }
        if taken || held {
            return Some(Served {
                stall_ps: stall,
                latency_ps: stall,
                stream: false,
            });
        }
        vcpu.count(&self.device, block::LLC_HITS, 1);
        let latency_ps = self.llc_ps[vcpu.domain as usize];
        let stream = vcpu.streams.miss(access.vaddr >> self.line_shift);
        let waited = if stream {
            self.stream_stall(
                vcpu,
                score,
                (latency_ps as f64 / self.machine.cpu.mlp) as u64,
            )
        } else if depends(vcpu, access) {
            latency_ps
        } else {
            (latency_ps as f64 / self.machine.cpu.mlp) as u64
        };
        Some(Served {
            stall_ps: stall + waited,
            latency_ps: if stream { waited } else { latency_ps },
            stream,
        })
    }

    /// A domain has a line no more; returns false where it has it again: whoever brought it there
    /// entered it before it told the directory, of which this may have undone the latter.
    fn forget(&self, line: u64, domain: u32) -> bool {
        self.directory.remove(line, domain);
        let is_back = self.llcs[domain as usize].probe(line).is_some();
        if is_back {
            self.directory.add(line, domain);
        }
        !is_back
    }

    /// Takes a line and its copies out of a domain, as often as it is brought there again meanwhile.
    /// The state first, then the copies: see `keep_if_owner`. Had the domain modified it? `None` where
    /// it was not there.
    fn take_from(&self, domain: u32, line: u64) -> Option<bool> {
        let mut dirty = None;
        loop {
            if let Some(entry) = self.llcs[domain as usize].take(line) {
                dirty = Some(entry.dirty() || dirty == Some(true));
                self.each(domain, entry.sharers(), |member| {
                    self.invalidate(member, line)
                });
            }
            if self.forget(line, domain) {
                return dirty;
            }
        }
    }

    /// Leaves a domain's line readable only; answers as [`Model::take_from`].
    fn share_from(&self, domain: u32, line: u64) -> Option<bool> {
        let llc = &self.llcs[domain as usize];
        loop {
            match llc.probe(line) {
                None if self.forget(line, domain) => return None,
                Some(entry)
                    if !entry.exclusive() || llc.replace(entry, entry.known_elsewhere()) =>
                {
                    if entry.owned() {
                        self.each(domain, entry.sharers(), |member| {
                            self.downgrade(member, line)
                        });
                    }
                    return Some(entry.dirty());
                }
                _ => {} // changed meanwhile
            }
        }
    }

    /// Looks for the line in other domains: a store removes it there, a load leaves it shared.
    /// The cost where one had modified it, else `None`: memory has it.
    fn fetch_from_domains(&self, vcpu: &Vcpu, store: bool, line: u64, now_ps: u64) -> Option<u64> {
        let mut others = self.directory.others(line, vcpu.domain);
        let mut transfer = None;
        let mut present = false;
        while others != 0 {
            let domain = others.trailing_zeros();
            others &= others - 1;
            let dirty = match store {
                true => self.take_from(domain, line),
                false => self.share_from(domain, line),
            };
            present |= dirty.is_some();
            if dirty == Some(true) {
                let node = self.node_of_domain(domain);
                transfer = Some(self.transfer_ps(vcpu.node, node));
            }
        }
        if transfer.is_some() || store && present {
            self.contests.mark(vcpu.id, line, store, now_ps);
        }
        transfer
    }

    /// Stall of a store to a line that is held, but not alone, as far as one knows.
    fn ownership_ps(&self, vcpu: &mut Vcpu, access: &Access, node: usize) -> u64 {
        let coherence = &self.machine.coherence;
        let asked = coherence.remote_ownership_ns.filter(|_| node != vcpu.node);
        let Some(ownership_ns) = asked else {
            return (coherence.invalidate_ns * 1000.0) as u64;
        };
        vcpu.traffic.asked[node] += 1;
        self.watch_ownership(vcpu, access, node);
        let cpu = &self.machine.cpu;
        let latency_ns = self.hops_ns(vcpu.node, node) + ownership_ns;
        (latency_ns * 1000.0 / cpu.store_mlp.unwrap_or(cpu.mlp)) as u64
    }

    /// What the way between two nodes takes, there and back.
    fn hops_ns(&self, to: usize, from: usize) -> f64 {
        self.machine.idle_latency_ns(to, from) - self.machine.nodes[from].idle_ns
    }

    fn node_of_domain(&self, domain: u32) -> usize {
        let cpu = self.machine.domains[domain as usize].cpus.first();
        cpu.and_then(|cpu| self.machine.node_of_cpu(cpu))
            .expect("a domain has CPUs, each in a node")
    }

    fn transfer_ps(&self, to: usize, from: usize) -> u64 {
        ((self.machine.coherence.cross_domain_ns + self.hops_ns(to, from)) * 1000.0) as u64
    }

    /// A line leaves a last-level cache: private copies go with it, dirty ones to memory.
    #[inline(always)]
    fn evict(&self, vcpu: &mut Vcpu, victim: Entry) {
        let line = victim.line();
        self.forget(line, vcpu.domain);
        self.each(vcpu.domain, victim.sharers(), |member| {
            self.invalidate(member, line)
        });
        if victim.dirty() {
            let node = self.node_starts[1..].iter().position(|&end| line < end);
            let node = node.expect("only located lines are cached");
            vcpu.write_back(&self.device, node);
            self.watch_write_back(vcpu, line, node);
        }
    }

    /// A store past the caches. Returns its stall.
    pub fn write_past(&self, vcpu: &mut Vcpu, score: &Score, access: &Access) -> u64 {
        let Some((line, node)) = self.locate(access.paddr) else {
            return 0;
        };
        if vcpu.combining_line == line {
            return 0;
        }
        vcpu.combining_line = line;
        self.invalidate(vcpu.id, line);
        self.overwrite(line);
        vcpu.write_back(&self.device, node);
        self.watch_write_back(vcpu, line, node);
        let stall_ps = self.stream_stall(vcpu, score, vcpu.prices.stream_ps[node]);
        vcpu.waited_ps += stall_ps;
        stall_ps
    }

    /// The price of an access to a contested line, where it still is one.
    fn contested(&self, vcpu: &Vcpu, line: u64, store: bool, now_ps: u64) -> Contested {
        match self.contests.access(vcpu.id, line, store, now_ps) {
            Visit::Free => Contested::No,
            Visit::Quiet => Contested::Quiet,
            Visit::Against(rival) => {
                let same = self.members[vcpu.domain as usize].contains(&rival);
                let rival_node = self
                    .machine
                    .node_of_cpu(hither_core::ids::CpuId(rival as u32));
                Contested::Pays(match (same, rival_node) {
                    (true, _) | (_, None) => {
                        (self.machine.coherence.same_domain_ns * 1000.0) as u64
                    }
                    (false, Some(node)) => self.transfer_ps(vcpu.node, node),
                })
            }
        }
    }

    /// A vCPU has run for a quantum: counts, traffic, time, and its turn.
    pub fn synchronise(&self, vcpu: &mut Vcpu, score: &mut Score, may_wait: bool) {
        let from = vcpu.begun_ps;
        let under_way = vcpu.take_under_way(self.machine.cpu.mlp);
        vcpu.flush(&self.device, score);
        let executed = vcpu.time_ps;
        let traffic = std::mem::take(&mut vcpu.traffic);
        let delay = self
            .load
            .post(&self.machine, vcpu.node, &traffic, from, executed);
        vcpu.delay(delay, under_way);
        vcpu.control(&self.device, &self.regions, self.machine.line_bytes);
        if may_wait {
            let now = self.clock.synchronise(vcpu.id, executed, vcpu.time_ps);
            self.load.advance(&self.machine, &self.device, now);
            self.report(now);
            let clock = &self.clock;
            let allowance = clock.allowance(vcpu.time_ps, now);
            vcpu.begin(score, clock.quantum_ps - allowance);
        }
        self.load
            .refresh(&self.machine, vcpu.node, &mut vcpu.prices);
    }

    fn report(&self, now_ps: u64) {
        use opium::header;
        self.device.set(header::TIME_NS, now_ps / 1000);
        self.device.set(
            header::MAX_SKEW_NS,
            self.clock.max_skew_ps.load(Relaxed) / 1000,
        );
        self.device
            .set(header::SKEW_BREAKS, self.clock.breaks.load(Relaxed));
    }
}

#[cfg(test)]
mod races;
#[cfg(test)]
mod references;
#[cfg(test)]
mod tests;
mod watched;
