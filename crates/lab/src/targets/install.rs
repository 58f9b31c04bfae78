//! Brings rivals from the registries where they are, once, into the cache.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use anyhow::{Context, ensure};

use super::{Options, Server, process::Ready};

/// The folder in which these npm packages are installed.
///
/// Errors: `npm` is missing or cannot reach its registry; with what it said.
pub fn npm(cache: &Path, name: &str, packages: &[&str]) -> anyhow::Result<PathBuf> {
    once(cache, name, packages, |folder| {
        fs::write(folder.join("package.json"), "{\"private\":true}")?;
        let mut npm = Command::new("npm");
        run(npm.args(["install", "--no-audit", "--no-fund", "--silent"]).args(packages).current_dir(folder)).map(drop)
    })
}

/// The folder with the program of this Go module.
///
/// Errors: `go` is missing or cannot reach its proxy; with what it said.
pub fn go(cache: &Path, name: &str, module: &str) -> anyhow::Result<PathBuf> {
    once(cache, name, &[module], |folder| {
        run(Command::new("go").args(["install", module]).env("GOBIN", folder)).map(drop)
    })
}

/// The folder in which these Debian packages are unpacked, without their dependencies: nothing is installed on the machine.
///
/// Errors: this is no Debian, or its mirror cannot be reached; with what `apt-get` said.
pub fn debian(cache: &Path, name: &str, packages: &[&str]) -> anyhow::Result<PathBuf> {
    once(cache, name, packages, |folder| {
        run(Command::new("apt-get").arg("download").args(packages).current_dir(folder))?;
        let files = fs::read_dir(folder)?.map(|file| Ok(file?.path())).collect::<std::io::Result<Vec<_>>>()?;
        files.iter().try_for_each(|file| run(Command::new("dpkg").arg("-x").args([file.as_path(), folder])).map(drop))
    })
}

/// A program of what [`debian`] has unpacked (or of `/`), which finds its libraries there.
pub fn unpacked(root: &Path, program: &str) -> anyhow::Result<Command> {
    let mut command = Command::new(root.join(program));
    if root != Path::new("/") {
        let libraries = ["usr/lib", "lib"].map(|lib| root.join(lib).join("x86_64-linux-gnu"));
        command.env("LD_LIBRARY_PATH", env::join_paths(libraries)?);
    }
    Ok(command)
}

/// The program that the user names: by `TARGET=PATH`, by `MILLRACE_TARGET`, or by having it in the path as `program`.
pub fn find(options: &Options, target: &str, program: &str) -> Option<PathBuf> {
    let named = options.binary.clone().or_else(|| env::var_os(variable(target)).map(PathBuf::from));
    named.or_else(|| on_path(program))
}

/// As [`find`].
///
/// Errors: none of them.
pub fn named(options: &Options, target: &str, program: &str) -> anyhow::Result<PathBuf> {
    find(options, target, program).with_context(|| {
        let variable = variable(target);
        format!("{target} is in no registry that is asked here: name its binary ({target}=PATH, or {variable})")
    })
}

fn variable(target: &str) -> String {
    format!("MILLRACE_{}", target.to_uppercase().replace('-', "_"))
}

/// Tells a program in Go how many CPUs it has: it would count those of the machine.
pub fn one_go_thread_per_cpu(command: &mut Command, options: &Options) {
    if !options.cpus.is_empty() {
        command.env("GOMAXPROCS", options.cpus.len().to_string());
    }
}

/// A program of the path.
pub fn on_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    let also = ["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from);
    env::split_paths(&path).chain(also).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Installs into a folder beside the final one, which appears only when it is whole: others may be doing the same.
fn once(
    cache: &Path,
    name: &str,
    what: &[&str],
    install: impl FnOnce(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<PathBuf> {
    let versions: String =
        what.join("+").chars().map(|c| if c.is_alphanumeric() || ".+-".contains(c) { c } else { '_' }).collect();
    let folder = cache.join(name).join(versions);
    if folder.is_dir() {
        return Ok(folder);
    }
    let parent = cache.join(name);
    fs::create_dir_all(&parent).with_context(|| format!("cannot create {}", parent.display()))?;
    let fresh = tempfile::Builder::new().prefix(".installing-").tempdir_in(&parent)?;
    install(fresh.path()).with_context(|| format!("cannot install {}", what.join(" ")))?;
    match fs::rename(fresh.path(), &folder) {
        Ok(()) => drop(fresh.keep()),
        // Somebody else was faster.
        Err(_) if folder.is_dir() => {}
        Err(error) => return Err(error.into()),
    }
    Ok(folder)
}

/// Runs it to its end. Errors: it is missing, or failed; with the end of what it printed.
pub fn run(command: &mut Command) -> anyhow::Result<Output> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("{program} is needed"))?;
    let said = [&output.stdout[..], &output.stderr].concat();
    let said = String::from_utf8_lossy(&said[said.len().saturating_sub(2000)..]).into_owned();
    ensure!(output.status.success(), "{program}: {}\n{said}", output.status);
    Ok(output)
}

/// Errors: Node.js is missing.
fn node_version() -> anyhow::Result<String> {
    Ok(String::from_utf8_lossy(&run(Command::new("node").arg("--version"))?.stdout).trim().to_owned())
}

/// What a version is called that stands on Node.js.
pub fn node_and(packages: &[&str]) -> anyhow::Result<String> {
    Ok(format!("{}, Node.js {}", packages.join(" "), node_version()?))
}

/// Installs these packages and starts a program of ours that uses them; it says `listening on http://ADDRESS`.
pub fn start_node(name: &str, packages: &[&str], program: &str, options: &Options) -> anyhow::Result<Server> {
    let packages = npm(&options.cache, name, packages)?;
    let folder = tempfile::tempdir()?;
    let script = folder.path().join("server.cjs");
    fs::write(&script, program)?;
    let mut node = Command::new("node");
    node.arg(script).env("NODE_PATH", packages.join("node_modules"));
    Server::start(node, Ready::Says("listening on http://"), folder, options)
}
