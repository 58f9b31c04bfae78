import { mount } from 'svelte';
import '../../lib/base.css';
import Battery from './Battery.svelte';

mount(Battery, { target: document.getElementById('app')! });
