mod analysis;
mod layers;
mod load;
mod path;
mod sampler;
mod targets;
mod usl;
mod wire;
