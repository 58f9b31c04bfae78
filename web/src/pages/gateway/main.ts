import { mount } from 'svelte';
import '../../lib/base.css';
import Gateway from './Gateway.svelte';

mount(Gateway, { target: document.getElementById('app')! });
