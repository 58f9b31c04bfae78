//! Installs rival servers from their package registries into the cache, once.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use anyhow::{Context, ensure};

use super::{Options, Server, process::Ready};

/// Returns the folder in which these npm packages are installed.
///
/// Errors: `npm` is missing or cannot reach its registry; the error contains its output.
pub fn npm(cache: &Path, name: &str, packages: &[&str]) -> anyhow::Result<PathBuf> {
    once(cache, name, packages, |folder| {
        fs::write(folder.join("package.json"), "{\"private\":true}")?;
        let mut npm = Command::new("npm");
        run(npm.args(["install", "--no-audit", "--no-fund", "--silent"]).args(packages).current_dir(folder)).map(drop)
    })
}

/// Returns the folder with the program of this Go module.
///
/// Errors: `go` is missing or cannot reach its proxy; the error contains its output.
pub fn go(cache: &Path, name: &str, module: &str) -> anyhow::Result<PathBuf> {
    once(cache, name, &[module], |folder| {
        run(Command::new("go").args(["install", module]).env("GOBIN", folder)).map(drop)
    })
}

/// Returns the folder in which these Debian packages are unpacked, without their dependencies. Nothing is installed
/// on the machine.
///
/// Errors: the machine does not run Debian, or the mirror cannot be reached; the error contains the output of
/// `apt-get`.
pub fn debian(cache: &Path, name: &str, packages: &[&str]) -> anyhow::Result<PathBuf> {
    once(cache, name, packages, |folder| {
        run(Command::new("apt-get").arg("download").args(packages).current_dir(folder))?;
        let files = fs::read_dir(folder)?.map(|file| Ok(file?.path())).collect::<std::io::Result<Vec<_>>>()?;
        files.iter().try_for_each(|file| run(Command::new("dpkg").arg("-x").args([file.as_path(), folder])).map(drop))
    })
}

/// Returns a command for a program that [`debian`] has unpacked (or of `/`), with the path of its libraries.
pub fn unpacked(root: &Path, program: &str) -> anyhow::Result<Command> {
    let mut command = Command::new(root.join(program));
    if root != Path::new("/") {
        let libraries = ["usr/lib", "lib"].map(|lib| root.join(lib).join("x86_64-linux-gnu"));
        command.env("LD_LIBRARY_PATH", env::join_paths(libraries)?);
    }
    Ok(command)
}

/// Returns the program that the user names by `TARGET=PATH` or `MILLRACE_TARGET`, or the one called `program` in the
/// path.
pub fn find(options: &Options, target: &str, program: &str) -> Option<PathBuf> {
    let named = options.binary.clone().or_else(|| env::var_os(variable(target)).map(PathBuf::from));
    named.or_else(|| on_path(program))
}

/// Returns a program like [`find`].
///
/// Errors: no such program is found.
pub fn named(options: &Options, target: &str, program: &str) -> anyhow::Result<PathBuf> {
    find(options, target, program).with_context(|| {
        let variable = variable(target);
        format!("{target} is in no registry that is asked here: name its binary ({target}=PATH, or {variable})")
    })
}

fn variable(target: &str) -> String {
    format!("MILLRACE_{}", target.to_uppercase().replace('-', "_"))
}

/// Sets the number of threads of a Go program to the number of its CPUs. By default, the program would count all CPUs
/// of the machine.
pub fn one_go_thread_per_cpu(command: &mut Command, options: &Options) {
    if !options.cpus.is_empty() {
        command.env("GOMAXPROCS", options.cpus.len().to_string());
    }
}

/// Returns a program of the path.
pub fn on_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    let also = ["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from);
    env::split_paths(&path).chain(also).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Installs into a temporary folder beside the final one and then renames it. The final folder is therefore always
/// complete, even if several processes install at the same time.
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
        // Another process has installed the same first.
        Err(_) if folder.is_dir() => {}
        Err(error) => return Err(error.into()),
    }
    Ok(folder)
}

/// Runs a command to its end.
///
/// Errors: the program is missing, or failed; the error contains the end of its output.
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

/// Returns the version of a target that runs on Node.js.
pub fn node_and(packages: &[&str]) -> anyhow::Result<String> {
    Ok(format!("{}, Node.js {}", packages.join(" "), node_version()?))
}

/// Installs these packages and starts one of our programs, which uses them and prints `listening on http://ADDRESS`.
pub fn start_node(name: &str, packages: &[&str], program: &str, options: &Options) -> anyhow::Result<Server> {
    let packages = npm(&options.cache, name, packages)?;
    let folder = tempfile::tempdir()?;
    let script = folder.path().join("server.cjs");
    fs::write(&script, program)?;
    let mut node = Command::new("node");
    node.arg(script).env("NODE_PATH", packages.join("node_modules"));
    Server::start(node, Ready::Says("listening on http://"), folder, options)
}
