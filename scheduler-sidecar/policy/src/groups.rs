//! Fair shares of groups: from the tree, its weights and the use so far to one weight for each tenant.
//!
//! At each place of the tree the children divide their parent's part by their weights. A child that used less than its
//! part gets a larger weight, one that used more a smaller one, so that use converges to the tree's shares. The tenants
//! of a group itself, next to its subgroups, count together as one child. Only children with running tenants divide;
//! others leave their part to them. Not here: quotas ([`crate::quotas`]).

use std::collections::{BTreeMap, BTreeSet};

use vgpu_config::change::TermsChange;
use vgpu_config::groups::{DEFAULT_GROUP_WEIGHT, GroupPlan, owner_of, parent_of};
use vgpu_config::plan::TenantPlan;

use crate::stage::PolicyStage;
use crate::usage::{UsageChange, UsageEffect};

/// Weight of a tenant that has all of the tree: the largest weight that the file accepts.
const WHOLE_WEIGHT: f64 = 10_000.0;

/// Power of the ratio of due to used time by which a child's weight grows. A child that has run for 60 % of the time
/// and is due half of it gets within two points of its half.
const CATCH_UP_POWER: f64 = 16.0;

/// Smallest factor on a child's weight: nobody waits for ever for those who catch up.
const MIN_CATCH_UP: f64 = 1.0 / 64.0;

/// Part of the half-life, in device time, that every child counts as used by its share: without it the first second of
/// use would decide everything.
const PRIOR_HALF_LIVES: f64 = 0.01;

/// Relative difference below which a tenant keeps its weight, so that its board is rarely written.
pub const WEIGHT_TOLERANCE: f64 = 0.1;

/// Everything that shares depend on.
#[derive(Debug, Clone, Copy)]
pub struct GroupInputs<'a> {
    /// The groups of the file.
    pub groups: &'a [GroupPlan],
    /// Time after which use counts half, in seconds.
    pub half_life: u64,
    /// Tenants with the terms that windows and bookings give them.
    pub tenants: &'a [TenantPlan],
    /// Names of the tenants that used or wanted device time lately.
    pub running: &'a BTreeSet<String>,
    /// Device time used so far, in ns, halved with each half-life, by the group's name in the record; the empty name
    /// has those without a group.
    pub used: &'a BTreeMap<String, f64>,
}

/// Share, use and present part of a group, each as a part of everything.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupRow {
    /// Name of the group.
    pub name: String,
    /// Part that its weights give it while all groups run.
    pub share: f64,
    /// Part of the use so far that it had, with its subgroups; 0 if nothing was used.
    pub used: f64,
    /// Part that its running tenants get now if all of them want time.
    pub effective: f64,
    /// Number of its tenants, with those of its subgroups.
    pub tenants: usize,
    /// Number of those that run.
    pub running: usize,
}

/// Parts of the tenants and of the groups.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GroupShares {
    /// Part of each tenant, by its name. Those that run add up to 1; of others it is what they would get.
    pub tenants: BTreeMap<String, f64>,
    /// The groups in the order of the file.
    pub rows: Vec<GroupRow>,
}

/// A weight in force, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldWeight {
    /// The weight.
    pub weight: u32,
    /// Share and use of its group when the weight was computed.
    pub reason: String,
}

/// Weights in force by tenant and device.
pub type HeldWeights = BTreeMap<(String, String), HeldWeight>;

/// True if some group has a weight, so that shares follow use.
#[must_use]
pub fn divides_by_use(groups: &[GroupPlan]) -> bool {
    groups.iter().any(|group| group.weight.is_some())
}

/// A group, or the root above all groups, with its own tenants.
#[derive(Debug, Default)]
struct GroupNode {
    weight: f64,
    children: Vec<usize>,
    own_tenants: Vec<usize>,
    own_used: f64,
    /// Use, tenants and running tenants with all subgroups.
    used: f64,
    tenants: usize,
    running: usize,
}

/// A child that divides its parent's part: a group, or the tenants of the parent itself.
#[derive(Debug, Clone, Copy)]
struct Child {
    group: Option<usize>,
    weight: f64,
    used: f64,
    is_running: bool,
}

struct GroupTree<'a> {
    inputs: &'a GroupInputs<'a>,
    /// The groups in the order of the file, then the root.
    nodes: Vec<GroupNode>,
}

impl<'a> GroupTree<'a> {
    fn new(inputs: &'a GroupInputs<'a>) -> Self {
        let groups = inputs.groups;
        let root = groups.len();
        let index_of = |name: Option<&str>| {
            let found = name.and_then(|name| groups.iter().position(|group| group.name == name));
            found.unwrap_or(root)
        };
        let mut nodes: Vec<GroupNode> = (0..=root).map(|_| GroupNode::default()).collect();
        for (index, group) in groups.iter().enumerate() {
            nodes[index].weight = f64::from(group.weight.unwrap_or(DEFAULT_GROUP_WEIGHT));
            nodes[index_of(parent_of(&group.name))].children.push(index);
        }
        let owner = |group: Option<&str>| index_of(owner_of(groups, group).map(|plan| plan.name.as_str()));
        for (index, tenant) in inputs.tenants.iter().enumerate() {
            nodes[owner(tenant.bearer.group.as_deref())].own_tenants.push(index);
        }
        let groups_of_tenants: BTreeSet<&str> =
            inputs.tenants.iter().map(|tenant| tenant.bearer.group.as_deref().unwrap_or_default()).collect();
        for (name, used) in inputs.used {
            let at = owner(Some(name));
            // A group that the file had once is nobody's use now.
            if at != root || groups_of_tenants.contains(name.as_str()) {
                nodes[at].own_used += used.max(0.0);
            }
        }
        let mut tree = Self { inputs, nodes };
        tree.add_up(root);
        tree
    }

    fn is_running(&self, tenant: usize) -> bool {
        self.inputs.running.contains(&self.inputs.tenants[tenant].name)
    }

    fn add_up(&mut self, at: usize) {
        let own = self.nodes[at].own_tenants.clone();
        let running = own.iter().filter(|tenant| self.is_running(**tenant)).count();
        let (mut used, mut tenants, mut all_running) = (self.nodes[at].own_used, own.len(), running);
        for child in self.nodes[at].children.clone() {
            self.add_up(child);
            let child = &self.nodes[child];
            (used, tenants, all_running) = (used + child.used, tenants + child.tenants, all_running + child.running);
        }
        let node = &mut self.nodes[at];
        (node.used, node.tenants, node.running) = (used, tenants, all_running);
    }

    /// Weight of own tenants together: of those that run, or of all if none does.
    fn own_weight(&self, at: usize) -> f64 {
        let own = &self.nodes[at].own_tenants;
        let sum = |only_running: bool| {
            let counted = own.iter().filter(|tenant| !only_running || self.is_running(**tenant));
            counted.map(|tenant| tenant_weight(&self.inputs.tenants[*tenant])).sum::<f64>()
        };
        let running = sum(true);
        if running > 0.0 { running } else { sum(false) }
    }

    fn children_of(&self, at: usize) -> Vec<Child> {
        let node = &self.nodes[at];
        let groups = node.children.iter().map(|index| {
            let GroupNode { weight, used, running, .. } = self.nodes[*index];
            Child { group: Some(*index), weight, used, is_running: running > 0 }
        });
        let own = (!node.own_tenants.is_empty()).then(|| Child {
            group: None,
            weight: self.own_weight(at),
            used: node.own_used,
            is_running: node.own_tenants.iter().any(|tenant| self.is_running(*tenant)),
        });
        groups.chain(own).collect()
    }

    /// Divides a node's part among its children, and goes down the tree.
    fn divide(&self, at: usize, part: f64, share: f64, shares: &mut GroupShares) {
        let children = self.children_of(at);
        let all_weights: f64 = children.iter().map(|child| child.weight).sum();
        let factors = catch_up_factors(&children, self.inputs.half_life);
        for (child, factor) in children.iter().zip(&factors) {
            let claim = child.weight * factor;
            let others: f64 = children
                .iter()
                .zip(&factors)
                .filter(|(other, _)| other.is_running && other.group != child.group)
                .map(|(other, factor)| other.weight * factor)
                .sum();
            let part = part * claim / (others + claim);
            let share = share * child.weight / all_weights;
            match child.group {
                Some(group) => {
                    shares.rows[group].share = share;
                    self.divide(group, part, share, shares);
                }
                None => self.divide_among_tenants(at, part, shares),
            }
        }
    }

    fn divide_among_tenants(&self, at: usize, part: f64, shares: &mut GroupShares) {
        let own = &self.nodes[at].own_tenants;
        let weight = |tenant: usize| tenant_weight(&self.inputs.tenants[tenant]);
        let running: f64 = own.iter().filter(|tenant| self.is_running(**tenant)).map(|tenant| weight(*tenant)).sum();
        for tenant in own {
            let also = if self.is_running(*tenant) { 0.0 } else { weight(*tenant) };
            let part = part * weight(*tenant) / (running + also);
            shares.tenants.insert(self.inputs.tenants[*tenant].name.clone(), part);
        }
    }
}

/// Returns the factor on each child's weight: 1 for the running child that is furthest behind its share.
fn catch_up_factors(children: &[Child], half_life: u64) -> Vec<f64> {
    let running = || children.iter().filter(|child| child.is_running);
    let (weights, used) = running().fold((0.0, 0.0), |sum, child| (sum.0 + child.weight, sum.1 + child.used));
    #[expect(clippy::cast_precision_loss, reason = "a year in ns, of which a hundredth is meant")]
    let prior = (half_life as f64) * 1e9 * PRIOR_HALF_LIVES;
    // How far each is behind: its share of the running children's time, over its part of their use.
    let behind = |child: &Child| {
        let also = if child.is_running { (0.0, 0.0) } else { (child.weight, child.used) };
        let share = child.weight / (weights + also.0);
        share * (used + also.1 + prior) / (child.used + share * prior)
    };
    let most = running().map(behind).fold(0.0, f64::max);
    let factor = |child: &Child| match behind(child) / most {
        ratio if ratio.is_finite() => ratio.powf(CATCH_UP_POWER).clamp(MIN_CATCH_UP, 1.0),
        _ => 1.0,
    };
    children.iter().map(factor).collect()
}

/// Weight of a tenant among those of its group: that on its first device.
fn tenant_weight(tenant: &TenantPlan) -> f64 {
    tenant.terms.first().map_or(1.0, |terms| f64::from(terms.weight.max(1)))
}

/// Returns the part of everything that each tenant is due now, and the rows of the groups.
///
/// # Cost
/// Grows with groups times (groups + tenants).
#[must_use]
pub fn divide_shares(inputs: &GroupInputs<'_>) -> GroupShares {
    let tree = GroupTree::new(inputs);
    let root = inputs.groups.len();
    let total = tree.nodes[root].used;
    let row = |(group, node): (&GroupPlan, &GroupNode)| GroupRow {
        name: group.name.clone(),
        share: 0.0,
        used: if total > 0.0 { node.used / total } else { 0.0 },
        effective: 0.0,
        tenants: node.tenants,
        running: node.running,
    };
    let rows = inputs.groups.iter().zip(&tree.nodes).map(row).collect();
    let mut shares = GroupShares { rows, tenants: BTreeMap::new() };
    tree.divide(root, 1.0, 1.0, &mut shares);
    for tenant in inputs.tenants.iter().filter(|tenant| inputs.running.contains(&tenant.name)) {
        let part = shares.tenants.get(&tenant.name).copied().unwrap_or(0.0);
        let group = tenant.bearer.group.as_deref();
        let above = shares
            .rows
            .iter_mut()
            .filter(|row| group.is_some_and(|group| vgpu_config::groups::is_within(group, &row.name)));
        above.for_each(|row| row.effective += part);
    }
    shares
}

/// Returns the weights to put in force. A weight that is within [`WEIGHT_TOLERANCE`] of the exact one stays.
#[must_use]
pub fn settle_weights(inputs: &GroupInputs<'_>, shares: &GroupShares, held: &HeldWeights) -> HeldWeights {
    let mut settled = HeldWeights::new();
    for tenant in inputs.tenants {
        let part = shares.tenants.get(&tenant.name).copied().unwrap_or(0.0);
        let owner = owner_of(inputs.groups, tenant.bearer.group.as_deref());
        let row = owner.and_then(|owner| shares.rows.iter().find(|row| row.name == owner.name));
        for terms in &tenant.terms {
            let exact = part * WHOLE_WEIGHT * f64::from(terms.weight) / tenant_weight(tenant);
            let key = (tenant.name.clone(), terms.device.clone());
            let kept = held.get(&key).filter(|held| is_near(exact, held.weight)).cloned();
            let fresh = || HeldWeight { weight: round_weight(exact), reason: describe_share(row) };
            settled.insert(key, kept.unwrap_or_else(fresh));
        }
    }
    settled
}

fn is_near(exact: f64, held: u32) -> bool {
    let held = f64::from(held);
    let exact = exact.clamp(1.0, WHOLE_WEIGHT);
    // Half a step more, so that rounding alone changes nothing.
    exact <= held * (1.0 + WEIGHT_TOLERANCE) + 0.5 && exact >= held / (1.0 + WEIGHT_TOLERANCE) - 0.5
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 1 to 10,000")]
fn round_weight(exact: f64) -> u32 {
    exact.round().clamp(1.0, WHOLE_WEIGHT) as u32
}

fn describe_share(row: Option<&GroupRow>) -> String {
    match row {
        Some(row) => format!("its share is {:.0} %, it used {:.0} %", row.share * 100.0, row.used * 100.0),
        None => "next to groups that share by use".to_owned(),
    }
}

/// Returns the weights as changes of terms: one for a tenant, or one for each of its devices if their weights differ.
#[must_use]
pub fn weight_changes(inputs: &GroupInputs<'_>, settled: &HeldWeights) -> Vec<UsageChange> {
    let mut changes = Vec::new();
    for tenant in inputs.tenants {
        let owner = owner_of(inputs.groups, tenant.bearer.group.as_deref());
        let change = |device: Option<&str>, held: &HeldWeight| UsageChange {
            stage: PolicyStage::Group,
            name: owner.map_or_else(String::new, |owner| owner.name.clone()),
            tenant: tenant.name.clone(),
            device: device.map(str::to_owned),
            effect: UsageEffect::Terms(TermsChange { weight: Some(held.weight), ..TermsChange::default() }),
            until: None,
            reason: Some(held.reason.clone()),
        };
        let key = |device: &String| (tenant.name.clone(), device.clone());
        let held: Vec<(&String, &HeldWeight)> =
            tenant.terms.iter().filter_map(|terms| Some((&terms.device, settled.get(&key(&terms.device))?))).collect();
        match held.split_first() {
            Some(((_, first), rest)) if rest.iter().all(|(_, other)| other == first) => {
                changes.push(change(None, first));
            }
            _ => changes.extend(held.iter().map(|(device, held)| change(Some(device), held))),
        }
    }
    changes
}
