import { mount } from 'svelte';
import '../../lib/base.css';
import CarCare from './CarCare.svelte';

mount(CarCare, { target: document.getElementById('app')! });
