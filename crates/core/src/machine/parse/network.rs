//! Links, routes and distances.
//!
//! A link is written once for both directions (`between = [a, b]`) or for one (`from`, `to`).
//! Routes that no `[[route]]` lists are found: all shortest ways (fewest links, then least idle
//! latency), shared equally or, with `route_split`, that share on the first (the one through the
//! nodes that the file lists first) and the rest equally on the others.

use super::core_side::place_of;
use super::document::{Error, Field, Place, Result, Section};
use super::limits;
use super::memory::{curve, defaults};
use crate::machine::{Link, Node, Route};

/// Fields that `[link_defaults]` may give.
const LINK_DEFAULTS: &[&str] = &["gbs", "hop_ns", "curve", "overhead"];
const LINK: &[&str] = &[
    "between", "from", "to", "gbs", "hop_ns", "curve", "overhead",
];

/// Links, `routes[from][to]` and `distances[from][to]` by node position.
pub(super) struct Network {
    pub links: Vec<Link>,
    pub routes: Vec<Vec<Vec<Route>>>,
    pub distances: Vec<Vec<u32>>,
}

/// `[[link]]`, `[link_defaults]`, `[[route]]`, `route_split` and `distances`.
pub(super) fn read(root: &Section, nodes: &[Node]) -> Result<Network> {
    let links = links(root, nodes)?;
    let split = match root.get("route_split") {
        Some(field) => Some(field.number(0.0, 1.0)?),
        None => None,
    };
    let listed = listed_routes(root, nodes, &links)?;
    let mut routes = vec![vec![Vec::new(); nodes.len()]; nodes.len()];
    for (from, row) in listed.into_iter().enumerate() {
        for (to, listed) in row.into_iter().enumerate() {
            routes[from][to] = if from == to {
                vec![Route {
                    share: 1.0,
                    links: Vec::new(),
                }]
            } else if listed.is_empty() {
                let ways = shortest_ways(&links, nodes.len(), from, to);
                if ways.is_empty() {
                    return Err(no_way(root, &nodes[from], &nodes[to]));
                }
                share_out(ways, split)
            } else {
                listed
            };
        }
    }
    let distances = match root.get("distances") {
        Some(field) => listed_distances(&field, nodes.len())?,
        None => derived_distances(nodes, &links, &routes),
    };
    Ok(Network {
        links,
        routes,
        distances,
    })
}

fn no_way(root: &Section, from: &Node, to: &Node) -> Error {
    let place = place_of(root, if root.has_own("link") { "link" } else { "node" });
    place.error(
        format!("no links lead from {} to {}", from.id, to.id),
        format!("add [[link]] with `between = [{}, {}]`", from.id.0, to.id.0),
    )
}

fn links(root: &Section, nodes: &[Node]) -> Result<Vec<Link>> {
    let sections = match root.get("link") {
        Some(field) => field.sections(limits::LINKS, LINK)?,
        None => Vec::new(),
    };
    let defaults = defaults(root, "link_defaults", LINK_DEFAULTS, &sections)?;
    let mut links: Vec<Link> = Vec::new();
    for section in sections {
        let section = section.with_defaults(defaults.as_ref());
        for (from, to) in link_ends(&section, nodes)? {
            if links.iter().any(|link| (link.from, link.to) == (from, to)) {
                return Err(section.place.error(
                    format!(
                        "there is a link from {} to {} already",
                        nodes[from].id, nodes[to].id
                    ),
                    "write parallel links as one, with the sum of their `gbs`",
                ));
            }
            links.push(Link {
                from,
                to,
                gbs: section.number("gbs", limits::GBS_MIN, limits::GBS_MAX)?,
                hop_ns: section.number("hop_ns", 0.0, limits::NS)?,
                curve: curve(&section)?,
                overhead: section.number("overhead", 1.0, 100.0)?,
            });
        }
    }
    if links.len() > limits::LINKS {
        return Err(place_of(root, "link").error(
            format!("there are {} directed links", links.len()),
            format!("the limit is {}", limits::LINKS),
        ));
    }
    Ok(links)
}

/// The directions that one `[[link]]` stands for, by node position.
fn link_ends(section: &Section, nodes: &[Node]) -> Result<Vec<(usize, usize)>> {
    const REMEDY: &str = "write `between = [0, 1]` for both directions, or `from` and `to` for one";
    if let Some(field) = section.get("between") {
        if section.has_own("from") || section.has_own("to") {
            return Err(field
                .place
                .error("there are `between` and `from` or `to`", REMEDY));
        }
        let ends = field.array(limits::NODES, "[0, 1]")?;
        let [a, b] = ends.as_slice() else {
            return Err(field.place.error("a link has two ends", REMEDY));
        };
        let (a, b) = (node_position(a, nodes)?, node_position(b, nodes)?);
        check_ends(&field.place, a, b)?;
        return Ok(vec![(a, b), (b, a)]);
    }
    if !section.has_own("from") && !section.has_own("to") {
        return Err(section.place.at("between").error("is missing", REMEDY));
    }
    let (from, to) = (
        section.need("from", "a node id")?,
        section.need("to", "a node id")?,
    );
    let ends = (node_position(&from, nodes)?, node_position(&to, nodes)?);
    check_ends(&to.place, ends.0, ends.1)?;
    Ok(vec![ends])
}

fn check_ends(place: &Place, from: usize, to: usize) -> Result<()> {
    if from == to {
        return Err(place.error("both ends are the same node", "name two nodes"));
    }
    Ok(())
}

/// A node id as the position of its node.
fn node_position(field: &Field, nodes: &[Node]) -> Result<usize> {
    let id = field.whole(0, limits::NODE_ID)?;
    nodes
        .iter()
        .position(|node| u64::from(node.id.0) == id)
        .ok_or_else(|| {
            let ids: Vec<String> = nodes.iter().map(|node| node.id.0.to_string()).collect();
            field.place.error(
                format!("there is no node {id}"),
                format!("the nodes are {}", ids.join(", ")),
            )
        })
}

/// `[[route]]` sections by node position; empty where none is listed.
fn listed_routes(root: &Section, nodes: &[Node], links: &[Link]) -> Result<Vec<Vec<Vec<Route>>>> {
    let mut routes = vec![vec![Vec::<Route>::new(); nodes.len()]; nodes.len()];
    let Some(field) = root.get("route") else {
        return Ok(routes);
    };
    let most = nodes.len() * nodes.len() * limits::ROUTES;
    let sections = field.sections(most, &["from", "to", "via", "share"])?;
    for section in &sections {
        let from = node_position(&section.need("from", "the memory's node id")?, nodes)?;
        let to = section.need("to", "the requester's node id")?;
        let to_position = node_position(&to, nodes)?;
        check_ends(&to.place, from, to_position)?;
        let route = listed_route(section, nodes, links, from, to_position)?;
        let alternatives = &mut routes[from][to_position];
        if alternatives.iter().any(|other| other.links == route.links) {
            return Err(section.place.error(
                "this way is listed twice",
                "list it once, with the sum of the shares",
            ));
        }
        if alternatives.len() == limits::ROUTES {
            return Err(section.place.error(
                "there are too many ways between these nodes",
                format!("the limit is {}", limits::ROUTES),
            ));
        }
        alternatives.push(route);
    }
    for (from, row) in routes.iter().enumerate() {
        for (to, alternatives) in row.iter().enumerate() {
            let sum: f64 = alternatives.iter().map(|route| route.share).sum();
            if !alternatives.is_empty() && (sum - 1.0).abs() > limits::SHARE_SUM {
                return Err(field.place.error(
                    format!(
                        "the shares of the ways from {} to {} sum to {sum}",
                        nodes[from].id, nodes[to].id
                    ),
                    "make them sum to 1",
                ));
            }
        }
    }
    Ok(routes)
}

fn listed_route(
    section: &Section,
    nodes: &[Node],
    links: &[Link],
    from: usize,
    to: usize,
) -> Result<Route> {
    let share = section.number("share", 0.0, 1.0)?;
    if share == 0.0 {
        return Err(place_of(section, "share").error("nothing takes this way", "delete the route"));
    }
    let mut stops = vec![(section.place.clone(), from)];
    if let Some(via) = section.get("via") {
        for stop in via.array(nodes.len(), "[1]")? {
            let position = node_position(&stop, nodes)?;
            if position == to || stops.iter().any(|&(_, earlier)| earlier == position) {
                return Err(stop.place.error(
                    "the way passes this node twice",
                    "name only the nodes in between",
                ));
            }
            stops.push((stop.place, position));
        }
    }
    stops.push((section.place.clone(), to));
    let mut way = Vec::with_capacity(stops.len() - 1);
    for pair in stops.windows(2) {
        let ((_, from), (place, to)) = (&pair[0], &pair[1]);
        match links
            .iter()
            .position(|link| (link.from, link.to) == (*from, *to))
        {
            Some(link) => way.push(link),
            None => {
                return Err(place.error(
                    format!(
                        "no link leads from {} to {}",
                        nodes[*from].id, nodes[*to].id
                    ),
                    "name in `via` the nodes in between, in order",
                ));
            }
        }
    }
    Ok(Route { share, links: way })
}

/// All shortest ways as lists of links: fewest links, then least idle latency; at most
/// [`limits::ROUTES`], those through the first nodes.
fn shortest_ways(links: &[Link], nodes: usize, from: usize, to: usize) -> Vec<Vec<usize>> {
    // (links, latency) from each node to `to`, relaxed until nothing changes (Bellman-Ford);
    // hops count first, so that a chain of links without latency is no shorter than one.
    let mut best = vec![(usize::MAX, f64::INFINITY); nodes];
    best[to] = (0, 0.0);
    let mut changed = true;
    while std::mem::take(&mut changed) {
        for link in links {
            let (hops, latency_ns) = best[link.to];
            if hops == usize::MAX {
                continue;
            }
            let through = (hops + 1, latency_ns + link.hop_ns);
            if through < best[link.from] {
                best[link.from] = through;
                changed = true;
            }
        }
    }
    let mut ways = Vec::new();
    if best[from].0 != usize::MAX {
        extend_way(links, &best, to, from, &mut Vec::new(), &mut ways);
    }
    ways
}

/// Depth-first over the links that lie on a shortest way; every branch reaches `to`.
fn extend_way(
    links: &[Link],
    best: &[(usize, f64)],
    to: usize,
    at: usize,
    way: &mut Vec<usize>,
    ways: &mut Vec<Vec<usize>>,
) {
    if at == to {
        ways.push(way.clone());
        return;
    }
    let (hops, latency_ns) = best[at];
    let mut next: Vec<usize> = (0..links.len())
        .filter(|&link| {
            let link = &links[link];
            // Sums of latencies in another order differ in the last bits.
            link.from == at
                && best[link.to].0 == hops - 1
                && best[link.to].1 + link.hop_ns <= latency_ns * (1.0 + 1e-9)
        })
        .collect();
    next.sort_by_key(|&link| links[link].to);
    for link in next {
        if ways.len() == limits::ROUTES {
            return;
        }
        way.push(link);
        extend_way(links, best, to, links[link].to, way, ways);
        way.pop();
    }
}

fn share_out(ways: Vec<Vec<usize>>, split: Option<f64>) -> Vec<Route> {
    let count = ways.len() as f64;
    let first = if ways.len() == 1 {
        1.0
    } else {
        split.unwrap_or(1.0 / count)
    };
    let other = (1.0 - first) / (count - 1.0).max(1.0);
    ways.into_iter()
        .enumerate()
        .map(|(position, links)| Route {
            share: if position == 0 { first } else { other },
            links,
        })
        .filter(|route| route.share > 0.0)
        .collect()
}

/// `distances = [[10, 16], [16, 10]]`
fn listed_distances(field: &Field, nodes: usize) -> Result<Vec<Vec<u32>>> {
    const EXAMPLE: &str = "[[10, 16], [16, 10]]";
    let rows = field.array(limits::NODES, EXAMPLE)?;
    if rows.len() != nodes {
        return Err(field.place.error(
            format!("{} rows for {nodes} nodes", rows.len()),
            "write one row per node",
        ));
    }
    let mut distances = Vec::with_capacity(nodes);
    for (from, row) in rows.iter().enumerate() {
        let cells = row.array(limits::NODES, "[10, 16]")?;
        if cells.len() != nodes {
            return Err(row.place.error(
                format!("{} distances for {nodes} nodes", cells.len()),
                "write one distance per node",
            ));
        }
        let read = |(to, cell): (usize, &Field)| {
            let distance = cell.whole(10, 254)?;
            if (distance == 10) != (from == to) {
                return Err(cell.place.error(
                    format!("a distance of {distance}"),
                    "write 10 from a node to itself and more between two",
                ));
            }
            Ok(super::core_side::narrow(distance))
        };
        distances.push(
            cells
                .iter()
                .enumerate()
                .map(read)
                .collect::<Result<Vec<u32>>>()?,
        );
    }
    Ok(distances)
}

/// SLIT distances from idle latencies: 10 for the fastest local access, the slower direction of
/// each pair in proportion.
fn derived_distances(nodes: &[Node], links: &[Link], routes: &[Vec<Vec<Route>>]) -> Vec<Vec<u32>> {
    let latency_ns = |memory: usize, requester: usize| {
        let hops_ns = |route: &Route| route.links.iter().map(|&l| links[l].hop_ns).sum::<f64>();
        let ways = &routes[memory][requester];
        nodes[memory].idle_ns + ways.iter().map(|way| way.share * hops_ns(way)).sum::<f64>()
    };
    let local_ns = nodes
        .iter()
        .filter(|node| !node.cpus.is_empty())
        .map(|node| node.idle_ns)
        .fold(f64::INFINITY, f64::min);
    let distance = |a: usize, b: usize| {
        if a == b {
            return 10;
        }
        let slower_ns = latency_ns(a, b).max(latency_ns(b, a));
        (10.0 * slower_ns / local_ns).round().clamp(11.0, 254.0) as u32
    };
    (0..nodes.len())
        .map(|a| (0..nodes.len()).map(|b| distance(a, b)).collect())
        .collect()
}
