//! Network between generators and servers: two namespaces of generators and one of servers, or loopback.

use std::{
    net::Ipv4Addr,
    process::{Child, Command},
};

use crate::{
    targets::{Options, Server, Target},
    wire::namespace::{NEAR_DEVICE, Namespace, add_address, configure, frame_bytes, plug},
};

/// Number of namespaces with generators.
const GENERATORS: usize = 2;
/// Number of source addresses of each of these namespaces.
const SOURCES: u32 = 8;

/// Settings of Millrace for a crowd that has one address and no names, and whose publishers connect long before their
/// first request.
const CROWD: [&str; 3] = [
    r#"limits.exempt=["127.0.0.0/8", "10.213.0.0/16"]"#,
    "limits.connections_per_subject_max=1000000",
    "limits.header_timeout=10m",
];

/// Network of one run.
pub struct Network {
    namespaces: Option<Namespaces>,
    /// Why there are no namespaces.
    why_not: String,
}

struct Namespaces {
    servers: Namespace,
    generators: Vec<Namespace>,
}

/// Address of the generators, or of the servers, at cable `i`.
fn near(i: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 213, 10 + i as u8, 1)
}

/// Addresses from which generators connect at cable `i`. A search for a free port takes milliseconds when most ports
/// of one address are in use.
fn sources(i: usize) -> impl Iterator<Item = Ipv4Addr> {
    (0..SOURCES).map(move |n| Ipv4Addr::from_bits(near(i).to_bits() + 100 + n))
}

fn far(i: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 213, 10 + i as u8, 2)
}

/// Device of the servers at cable `i`.
fn far_device(i: usize) -> String {
    format!("far{i}")
}

impl Namespaces {
    fn new() -> anyhow::Result<Self> {
        let servers = Namespace::new()?;
        let thread = servers.run(|| Ok(rustix::thread::gettid().as_raw_nonzero().get()))?;
        let mut generators = Vec::new();
        for i in 0..GENERATORS {
            let generator = Namespace::new()?;
            generator.run(move || {
                plug(near(i), &far_device(i), thread)?;
                sources(i).try_for_each(|source| add_address(NEAR_DEVICE, source))
            })?;
            servers.run(move || configure(&far_device(i), far(i)))?;
            generators.push(generator);
        }
        Ok(Self { servers, generators })
    }
}

impl Network {
    /// Creates namespaces if this target can listen on their addresses, and this machine allows it. Otherwise uses
    /// loopback.
    pub fn new(target: &dyn Target) -> Self {
        let namespaces = match target.can_listen_anywhere() {
            true => Namespaces::new(),
            false => Err(anyhow::anyhow!("{} listens on loopback only", target.name())),
        };
        match namespaces {
            Ok(namespaces) => Self { namespaces: Some(namespaces), why_not: String::new() },
            Err(error) => Self { namespaces: None, why_not: format!("{error:#}") },
        }
    }

    /// Returns the number of namespaces with generators; 0 on loopback.
    pub fn namespaces(&self) -> usize {
        self.namespaces.as_ref().map_or(0, |namespaces| namespaces.generators.len())
    }

    /// Returns why the network is loopback, if it is.
    pub fn why_loopback(&self) -> Option<&str> {
        self.namespaces.is_none().then_some(&*self.why_not)
    }

    /// Starts node `i` where generator `i` can reach it.
    ///
    /// Errors: the server does not start.
    pub fn start_node(&self, i: usize, target: &'static dyn Target, options: &Options) -> anyhow::Result<Server> {
        let mut options = options.clone();
        let mut set = |setting: &str| options.arguments.extend(["--set".to_owned(), setting.to_owned()]);
        if target.can_listen_anywhere() {
            CROWD.iter().copied().for_each(&mut set);
        }
        let Some(namespaces) = &self.namespaces else { return target.start(&options) };
        // The network has no other clients.
        let listen = format!("server.listen={}:0", far(i % GENERATORS));
        [&listen[..], "server.insecure_no_tls=true", "server.insecure_no_auth=true"].into_iter().for_each(set);
        namespaces.servers.run(move || target.start(&options))
    }

    /// Returns the addresses from which generator `i` connects; empty on loopback, where the generator has its own.
    pub fn sources(&self, i: usize) -> Vec<Ipv4Addr> {
        self.namespaces.iter().flat_map(|_| sources(i % GENERATORS)).collect()
    }

    /// Starts generator `i`.
    ///
    /// Errors: the program does not start.
    pub fn spawn_generator(&self, i: usize, mut command: Command) -> anyhow::Result<Child> {
        match &self.namespaces {
            Some(namespaces) => namespaces.generators[i % GENERATORS].run(move || Ok(command.spawn()?)),
            None => Ok(command.spawn()?),
        }
    }

    /// Returns the bytes that the servers have received and sent, with Ethernet headers; `None` on loopback.
    pub fn carried_bytes(&self) -> Option<(u64, u64)> {
        let servers = &self.namespaces.as_ref()?.servers;
        let sum = servers.run(|| {
            let cable = |i| frame_bytes(None, &far_device(i));
            let each = (0..GENERATORS).map(cable).collect::<anyhow::Result<Vec<_>>>()?;
            Ok(each.into_iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1)))
        });
        sum.ok()
    }
}
